#!/usr/bin/env python3
"""Has the kernel track packets, and prints after each its connection in the kernel's table.

Runs in a network namespace that forwards between "client0" and "server0"; the other ends of
these cables are "client1" and "server1". Rules of the namespace write the `ct state` of a packet
into its DSCP. Reads orders, one on a line:

  flow FAMILY PROTOCOL SOURCE DESTINATION A B C
                       the next number, from 0 on; A and B are ports, for ICMP type, code, id
  send FLOW SIDE FRAME a frame (hexadecimal) comes in at the cable of that side
  age FLOW SECONDS     sets the remaining time of the entry of the flow
  pause SECONDS        waits

For each frame it prints two times in microseconds, before it was sent and after the entry
was read, the DSCP ("lost" if it did not come out) and the entry: source, status, timeout and
state ("-" without an entry), then the kernel's log messages. For each age it prints the
times.
"""
import os
import select
import socket
import struct
import sys
import time

from cables import far_ends, stations

NETLINK_NETFILTER = 12
REQUEST, ACK = 1, 4
CT_NEW, CT_GET = 0x100, 0x101
LOG_CONFIG = 0x401
ERROR = 2
NESTED = 0x8000
# The time in seconds that a frame may take through the namespace.
PATIENCE = 2


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data, start, end):
    while start + 4 <= end:
        length, kind = struct.unpack_from("=HH", data, start)
        yield kind & 0x3FFF, start + 4, start + length
        start += (length + 3) & ~3


def message(kind, flags, family, body, group=0):
    head = struct.pack("=BBH", family, 0, socket.htons(group))
    return struct.pack("=IHHII", 16 + len(head) + len(body), kind, flags, 0, 0) + head + body


def netlink():
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    opened.bind((0, 0))
    return opened


class Flow:
    """A flow, and the request for its entry."""

    def __init__(self, family, protocol, source, destination, *numbers):
        protocol = int(protocol)
        first, second, third = map(int, numbers)
        self.family = socket.AF_INET if family == "4" else socket.AF_INET6
        kinds = (1, 2) if family == "4" else (3, 4)
        ends = zip(kinds, (source, destination))
        ends = [attribute(kind, socket.inet_pton(self.family, end)) for kind, end in ends]
        told = attribute(1, bytes([protocol]))
        if protocol in (1, 58):
            base = 4 if protocol == 1 else 7
            told += attribute(base, struct.pack(">H", third))
            told += attribute(base + 1, bytes([first])) + attribute(base + 2, bytes([second]))
        elif protocol in (6, 17, 33, 47, 132, 136):
            told += attribute(2, struct.pack(">H", first)) + attribute(3, struct.pack(">H", second))
        inner = attribute(NESTED | 1, b"".join(ends)) + attribute(NESTED | 2, told)
        self.tuple = attribute(NESTED | 1, inner)
        self.question = message(CT_GET, REQUEST, self.family, self.tuple)


class Table:
    """The kernel's connection table."""

    def __init__(self):
        self.socket = netlink()

    def ask(self, flow):
        self.socket.send(flow.question)
        answer = self.socket.recv(8192)
        if struct.unpack_from("=H", answer, 4)[0] == ERROR:
            return "- - - -"
        source, status, timeout, state = "-", 0, 0, "-"
        for kind, start, end in attributes(answer, 20, len(answer)):
            if kind == 1:
                # The first nested attribute holds the addresses, with the source first.
                length = 4 if flow.family == socket.AF_INET else 16
                source = socket.inet_ntop(flow.family, answer[start + 8:start + 8 + length])
            elif kind == 3:
                status = struct.unpack_from(">I", answer, start)[0]
            elif kind == 7:
                timeout = struct.unpack_from(">I", answer, start)[0]
            elif kind == 4:
                # The protocol's attributes; the first is its state.
                state = answer[start + 8]
        return f"{source} {status} {timeout} {state}"

    def age(self, flow, seconds):
        left = attribute(7, struct.pack(">I", seconds))
        self.socket.send(message(CT_NEW, REQUEST | ACK, flow.family, flow.tuple + left))
        self.socket.recv(8192)


class Log:
    """The kernel's log messages about invalid packets."""

    def __init__(self):
        self.socket = netlink()
        # Bind to group 0, copy no payload, and send each message at once.
        for body in [
            attribute(1, bytes([1])),
            attribute(2, struct.pack(">IBx", 0, 1)),
            attribute(5, struct.pack(">I", 1)),
        ]:
            self.socket.send(message(LOG_CONFIG, REQUEST, 0, body))
        self.socket.setblocking(False)

    def read(self):
        told = []
        while True:
            try:
                data = self.socket.recv(65536)
            except BlockingIOError:
                return " ".join(told)
            if struct.unpack_from("=H", data, 4)[0] == 0x400:
                for kind, start, end in attributes(data, 20, len(data)):
                    if kind == 10:
                        told.append(data[start:end].rstrip(b"\0").decode())


class Cables:
    """Both sides of the gateway."""

    def __init__(self):
        self.ends = far_ends()
        self.macs = stations()

    def carry(self, side, frame):
        """Sends a frame and returns the DSCP with which it comes out."""
        away = self.ends["server" if side == "client" else "client"]
        self.ends[side].send(self.macs[side] + frame[6:])
        four = frame[12] == 8
        behind = frame[14 + 4 * (frame[14] & 15):] if four else frame[54:]
        until = time.monotonic() + PATIENCE
        while True:
            try:
                out = away.recv(65536)
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0 or not select.select([away], [], [], left)[0]:
                    return "lost"
                continue
            if four and out[14 + 4 * (out[14] & 15):] == behind:
                return out[15] >> 2
            if not four and out[54:] == behind:
                return (out[14] & 15) << 2 | out[15] >> 6


def microseconds():
    return time.monotonic_ns() // 1000


def main():
    # One CPU keeps frames in order.
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    table, log, cables, flows, told = Table(), Log(), Cables(), [], []
    log.read()
    for line in sys.stdin:
        order, *words = line.split()
        before = microseconds()
        if order == "send":
            flow, side, frame = flows[int(words[0])], words[1], bytes.fromhex(words[2])
            dscp = cables.carry(side, frame)
            entry = table.ask(flow)
            told.append(f"{before} {microseconds()} {dscp} {entry} {log.read()}")
        elif order == "age":
            table.age(flows[int(words[0])], int(words[1]))
            told.append(f"{before} {microseconds()}")
        elif order == "flow":
            flows.append(Flow(*words))
        elif order == "pause":
            time.sleep(float(words[0]))
    print("\n".join(told))


main()
