"""The addresses of this node."""

from __future__ import annotations

import json
import subprocess


def addresses() -> dict[str, list[str]]:
    """Global addresses in text form, by interface; loopback and link-local ones are left out."""
    done = subprocess.run(
        ["ip", "-json", "address", "show", "scope", "global"], capture_output=True, text=True, check=True
    )
    return {
        interface["ifname"]: found
        for interface in json.loads(done.stdout or "[]")
        # ip filters addresses, and leaves an empty one where it left something out.
        if (found := [info["local"] for info in interface.get("addr_info", []) if "local" in info])
    }
