#!/usr/bin/env python3
"""Sends packets through a namespace that forwards, and says which of them came out.

The namespace forwards between "client0" and "server0"; the other ends of these cables are
"client1" and "server1". Reads lines "SIDE FRAME" (hexadecimal); no two frames
end with the same eight bytes. Prints a line for each: when it was sent, in microseconds, and whether
it came out at the other side.
"""
import os
import select
import socket
import struct
import sys
import time

ETH_P_ALL = 3
# How long after the last frame is waited for others, seconds.
PATIENCE = 0.15


def cable(name):
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((name, ETH_P_ALL))
    opened.setblocking(False)
    return opened


def main():
    # One CPU, so that no frame overtakes another.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    ends, macs, out = {}, {}, {"client": set(), "server": set()}
    for side in ("client", "server"):
        ends[side] = cable(f"{side}1")
        with open(f"/sys/class/net/{side}0/address") as file:
            macs[side] = bytes.fromhex(file.read().strip().replace(":", ""))

    def collect():
        for side, end in ends.items():
            while True:
                try:
                    frame, address = end.recvfrom(65536)
                except BlockingIOError:
                    break
                # Not what we have sent ourselves.
                if address[2] != socket.PACKET_OUTGOING and len(frame) >= 8:
                    out[side].add(frame[-8:])

    sent = []
    for line in sys.stdin:
        side, frame = line.split()
        frame = bytes.fromhex(frame)
        at = time.monotonic_ns() // 1000
        ends[side].send(macs[side] + frame[6:])
        sent.append((at, side, frame[-8:]))
        collect()
    until = time.monotonic() + PATIENCE
    while (left := until - time.monotonic()) > 0:
        select.select(list(ends.values()), [], [], left)
        collect()
    for at, side, number in sent:
        away = "server" if side == "client" else "client"
        print(at, int(number in out[away]))


main()
