#!/usr/bin/env python3
"""Sends frames through a router as fast as it takes them, and says what came out.

The router has the ends "client0" and "server0" of two cables; this plays the hosts at the others,
"client1" and "server1". Takes a file each line of which has a side and a frame in hexadecimal
digits. Prints each frame that came out, in the same form, by the side where it came.

A line "- SIDE FRAME" is a mark. Nothing is sent behind it before it has come out, if it does in
time: a frame whose last 8 bytes no other has. So no queue on the way gets too long.
"""
import os
import select
import socket
import sys
import time

ETH_P_ALL = 3
SIDES = ("client", "server")
# How long a mark may take, seconds.
PATIENCE = 10


def cable(name):
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    opened.bind((name, ETH_P_ALL))
    opened.setblocking(False)
    return opened


def main():
    # One CPU, so that no frame overtakes another.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    cables = {side: cable(f"{side}1") for side in SIDES}
    out = []

    def collect(mark):
        found = False
        for side, end in cables.items():
            while True:
                try:
                    frame, address = end.recvfrom(65536)
                except BlockingIOError:
                    break
                if address[2] == socket.PACKET_OUTGOING:
                    continue
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
