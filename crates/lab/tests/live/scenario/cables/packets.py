#!/usr/bin/env python3
"""Sends packets through a router and reports what happened to each.

The router has the ends "client0" and "server0" of two cables; this program plays the hosts at the
other ends, "client1" and "server1". It takes a file. Each line has a side and a frame in
hexadecimal digits, and the last 8 bytes of each frame are unique. For each frame it prints a line
in JSON: the frames that came "out", each with its side, and the "answers" that its sender got, each
an ICMP message.

The last two frames show that all others have come through: the router forwards one, and answers the
other, whose time to live ends there. Nothing may overtake the other frames.
"""
import json
import select
import sys
import time

from cables import far_ends, received

# The time between two frames in seconds. Routers limit their rate of errors.
PACE = 0.002
# The time in seconds that the last frames may take.
PATIENCE = 10


def message(frame):
    """The ICMP message of a frame if it is an error, else none."""
    if frame[12:14] == b"\x08\x00" and frame[23] == 1:
        found = frame[14 + (frame[14] & 15) * 4:]
        return found if found[0] in (3, 4, 5, 11, 12) else None
    if frame[12:14] == b"\x86\xdd" and frame[20] == 58:
        return frame[54:] if frame[54] < 128 or frame[54] == 137 else None
    return None


def main():
    cables = far_ends()
    with open(sys.argv[1]) as file:
        frames = [(side, bytes.fromhex(frame)) for side, frame in map(str.split, file)]
    told = {frame[-8:]: {"out": [], "answers": []} for _, frame in frames}

    def collect():
        for side, end in cables.items():
            for frame in received(end):
                if frame[-8:] not in told:
                    continue
                error = message(frame)
                if error is None:
                    told[frame[-8:]]["out"].append([side, frame.hex()])
                else:
                    told[frame[-8:]]["answers"].append(error.hex())

    for side, frame in frames:
        cables[side].send(frame)
        time.sleep(PACE)
        collect()
    passed, refused = frames[-2][1][-8:], frames[-1][1][-8:]
    until = time.monotonic() + PATIENCE
    while not (told[passed]["out"] and told[refused]["answers"]):
        left = until - time.monotonic()
        if left < 0:
            sys.exit("the last two frames have not arrived")
        select.select(list(cables.values()), [], [], left)
        collect()
    for _, frame in frames[:-2]:
        print(json.dumps(told[frame[-8:]]))


main()
