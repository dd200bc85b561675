#!/usr/bin/env python3
"""Sends frames through a router as fast as it takes them, and prints the frames that came out.

The router has the ends "client0" and "server0" of two cables; this program plays the hosts at the
other ends, "client1" and "server1". It takes a file. Each line has a side and a frame in
hexadecimal digits. It prints each frame that came out, in the same form, with the side where it
came out.

A line "- SIDE FRAME" is a mark, a frame whose last 8 bytes are unique. The program sends nothing
behind a mark before the mark has come out, and fails if that takes too long. So no queue on the way
gets too long.
"""
import os
import select
import sys
import time

from cables import far_ends, received

# The time in seconds that a mark may take.
PATIENCE = 10


def main():
    # One CPU keeps frames in order.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    cables = far_ends()
    out = []

    def collect(mark):
        found = False
        for side, end in cables.items():
            for frame in received(end):
                if mark is not None and frame[-8:] == mark:
                    found = True
                else:
                    out.append(f"{side} {frame.hex()}")
        return found

    with open(sys.argv[1]) as file:
        for line in file:
            *kind, side, text = line.split()
            frame = bytes.fromhex(text)
            cables[side].send(frame)
            mark = frame[-8:] if kind else None
            until = time.monotonic() + PATIENCE
            while not collect(mark) and mark:
                left = until - time.monotonic()
                if left < 0:
                    sys.exit("a mark has not come out")
                select.select(list(cables.values()), [], [], left)
    print("\n".join(out))


main()
