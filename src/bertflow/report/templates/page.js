"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  if (!data) return;
  document.documentElement.classList.add("js");

  const SVG = "http://www.w3.org/2000/svg";
  const SHOWN = 200;
  const REACH = 24;
  const count = data.queries.length;
  const names = data.names;
  const pointOf = new Map(data.queries.map((row, point) => [row, point]));
  let picked = 0;

  function textOf(row) {
    return data.texts ? data.texts[row] : "row " + row.toLocaleString("en");
  }

  function element(tag, kind, text) {
    const made = document.createElement(tag);
    if (kind) made.className = kind;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The cloud: one point on all sides.

  const stages = [...document.querySelectorAll(".stage")].map((stage) => {
    const svg = stage.querySelector("svg");
    const dots = [...svg.querySelectorAll(".dots use")];
    const marks = document.createElementNS(SVG, "g");
    svg.append(marks);
    return {
      stage,
      svg,
      x: dots.map((dot) => Number(dot.getAttribute("x"))),
      y: dots.map((dot) => Number(dot.getAttribute("y"))),
      marks,
    };
  });
  const readout = document.getElementById("readout");

  function mark(one, kind, point, radius) {
    const made = document.createElementNS(SVG, "circle");
    made.setAttribute("class", "mark " + kind);
    made.setAttribute("cx", one.x[point]);
    made.setAttribute("cy", one.y[point]);
    made.setAttribute("r", radius);
    made.dataset.point = point;
    one.marks.appendChild(made);
  }

  function show(point) {
    stages.forEach((one, side) => {
      one.marks.replaceChildren();
      for (const row of data.near[side][point]) {
        if (pointOf.has(row)) mark(one, "near", pointOf.get(row), 3.4);
      }
      mark(one, "around", point, 5);
      mark(one, "core", point, 2.2);
    });
    if (readout) readout.textContent = textOf(data.queries[point]);
  }

  function nearestTo(one, event) {
    const box = one.svg.getBoundingClientRect();
    const scale = one.svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale;
    const y = (event.clientY - box.top) * scale;
    let best = -1;
    let least = (REACH * scale) ** 2;
    for (let point = 0; point < count; point += 1) {
      const apart = (one.x[point] - x) ** 2 + (one.y[point] - y) ** 2;
      if (apart < least) [best, least] = [point, apart];
    }
    return best;
  }

  // The nearest point in the direction of an arrow, not far to its side.
  function towards(one, from, right, down) {
    let best = from;
    let least = Infinity;
    for (let point = 0; point < count; point += 1) {
      const x = one.x[point] - one.x[from];
      const y = one.y[point] - one.y[from];
      const ahead = x * right + y * down;
      const aside = Math.abs(x * down) + Math.abs(y * right);
      if (ahead <= 0 || aside > 2 * ahead) continue;
      const cost = ahead + 2 * aside;
      if (cost < least) [best, least] = [point, cost];
    }
    return best;
  }

  const ARROWS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };

  stages.forEach((one, side) => {
    let current = 0;
    one.stage.tabIndex = 0;
    one.stage.setAttribute("role", "application");
    one.stage.setAttribute("aria-label", "Points " + names[side] + ": arrow keys go from point to point, Enter asks for its neighbours");
    one.stage.setAttribute("aria-describedby", "readout");
    one.stage.addEventListener("pointermove", (event) => {
      const point = nearestTo(one, event);
      show(point < 0 ? picked : point);
    });
    one.stage.addEventListener("pointerleave", () => show(picked));
    one.stage.addEventListener("click", (event) => {
      const point = nearestTo(one, event);
      if (point >= 0) pick(current = point);
    });
    one.stage.addEventListener("focus", () => show(current = picked));
    one.stage.addEventListener("blur", () => show(picked));
    one.stage.addEventListener("keydown", (event) => {
      if (event.key in ARROWS) current = towards(one, current, ...ARROWS[event.key]);
      else if (event.key === "Home") current = 0;
      else if (event.key === "End") current = count - 1;
      else if (event.key === "Enter" || event.key === " ") pick(current);
      else return;
      event.preventDefault();
      show(current);
    });
  });

  // Neighbours of a query.

  const search = document.getElementById("search");
  const choice = document.getElementById("choice");
  const told = document.getElementById("matches");
  const asked = document.getElementById("asked");
  const lists = [...document.querySelectorAll(".lists ol")];

  function pick(point) {
    picked = point;
    asked.textContent = textOf(data.queries[point]);
    lists.forEach((list, side) => {
      const others = data.near.filter((_, other) => other !== side);
      list.replaceChildren(
        ...data.near[side][point].map((row, place) => {
          const item = element("li");
          const text = element("span", "text", textOf(row));
          if (others.length && others.every((near) => near[point].includes(row))) {
            text.append(element("span", "both", "on both sides"));
          }
          item.append(element("span", "cosine", data.cosines[side][point][place].toFixed(3)), text);
          return item;
        })
      );
    });
    for (const option of choice.options) option.selected = Number(option.value) === point;
    show(point);
  }

  function offer() {
    const wanted = search.value.trim().toLowerCase();
    const found = [];
    let total = 0;
    for (let point = 0; point < count; point += 1) {
      if (!textOf(data.queries[point]).toLowerCase().includes(wanted)) continue;
      total += 1;
      if (found.length < SHOWN) found.push(point);
    }
    choice.replaceChildren(
      ...found.map((point) => {
        const option = new Option(textOf(data.queries[point]), point);
        option.selected = point === picked;
        return option;
      })
    );
    told.textContent = total.toLocaleString("en") + " of " + count.toLocaleString("en") + " match" + (total > found.length ? ", the first " + SHOWN + " are listed" : "");
  }

  search.addEventListener("input", offer);
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !choice.options.length) return;
    event.preventDefault();
    pick(Number(choice.options[0].value));
  });
  choice.addEventListener("change", () => pick(Number(choice.value)));
  document.getElementById("another").addEventListener("click", () => {
    pick(Math.floor(Math.random() * count));
  });
  offer();
  pick(0);
})();
