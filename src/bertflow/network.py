"""Whether the model hub can be reached."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants


def hub_answers() -> bool:
    """Whether the hub can be reached: its clients would try for minutes before they give up."""
    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    if getproxies().get(hub.scheme):
        return True  # The proxy's answer is for the client to get.
    port = hub.port or (80 if hub.scheme == "http" else 443)
    try:
        socket.create_connection((hub.hostname or "", port), timeout=10).close()
    except OSError:
        return False
    return True
