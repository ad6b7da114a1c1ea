"""The names of what can be reproduced, by themselves: a wrong one is answered at once."""

NAMES = (
    "table1",
    "table2",
    "table3",
    "table4",
    "table5",
    "table6",
    "table7",
    "table8",
    "figure2",
)
