#!/usr/bin/env python3
"""Describes how ports answer, in words that depend only on the gateway in between.

    probe.py serve           answers on all ports until it is killed
    probe.py ask ADDRESS     asks them, and prints a line for each

For a refusal it prints the flags and numbers of the reset, or the type and code of the error.
"""
import errno
import selectors
import socket
import struct
import sys
import time

TCP_PORTS = [22, 23, 24, 25, 80, 81, 443, 8080]
UDP_PORTS = [53, 54, 5000, 5001]
ETH_P_ALL = 3
# The time in seconds to wait for the answers of all ports together.
PATIENCE = 1.2


def serve():
    selector = selectors.DefaultSelector()
    for kind, ports in ((socket.SOCK_STREAM, TCP_PORTS), (socket.SOCK_DGRAM, UDP_PORTS)):
        for port in ports:
            opened = socket.socket(socket.AF_INET6, kind)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            opened.bind(("::", port))
            if kind == socket.SOCK_STREAM:
                opened.listen()
            selector.register(opened, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj.type == socket.SOCK_STREAM:
                accepted, _ = key.fileobj.accept()
                accepted.send(b"hello")
                accepted.close()
            else:
                data, sender = key.fileobj.recvfrom(2048)
                key.fileobj.sendto(data, sender)


def refusal(frame, is_v6):
    """The protocol and port that a frame refuses, and a description; None for other frames."""
    if frame[12:14] != (b"\x86\xdd" if is_v6 else b"\x08\x00"):
        return None
    at = 54 if is_v6 else 14 + 4 * (frame[14] & 15)
    protocol = frame[20] if is_v6 else frame[23]
    if protocol == 6 and frame[at + 13] & 4:
        sequence, acknowledgment, window = struct.unpack("!II2xH", frame[at + 4 : at + 16])
        flags = f"reset flags {frame[at + 13]:#x} window {window}"
        port, = struct.unpack_from("!H", frame, at)
        return "tcp", port, f"{flags} from number {bool(sequence)}"
    if protocol == (58 if is_v6 else 1) and frame[at] in ((1,) if is_v6 else (3, 11)):
        quoted = frame[at + 8 :]
        start = 40 if is_v6 else 4 * (quoted[0] & 15)
        name = {6: "tcp", 17: "udp"}.get(quoted[6] if is_v6 else quoted[9])
        port, = struct.unpack_from("!H", quoted, start + 2)
        return name, port, f"error {frame[at]} {frame[at + 1]}"
    return None


def begin(kind, family, address, port):
    """Returns a socket that has sent a question or a SYN."""
    opened = socket.socket(family, kind)
    opened.setblocking(False)
    try:
        opened.connect((address, port))
    except BlockingIOError:
        pass
    if kind == socket.SOCK_DGRAM:
        opened.send(b"question")
    return opened


def heard(opened):
    try:
        return opened.recv(100).decode()
    except OSError as error:
        return errno.errorcode[error.errno]


def refusals(watch, is_v6):
    found = {}
    while True:
        try:
            frame, sender = watch.recvfrom(65536)
        except BlockingIOError:
            return found
        told = sender[2] != socket.PACKET_OUTGOING and refusal(frame, is_v6)
        if told:
            found.setdefault(told[:2], set()).add(told[2])


def ask(address):
    """Asks all ports at once, because each silent port costs the whole timeout."""
    is_v6 = ":" in address
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    watch.bind(("eth0", ETH_P_ALL))
    watch.setblocking(False)
    selector, said = selectors.DefaultSelector(), {}
    for name, kind, ports in (
        ("tcp", socket.SOCK_STREAM, TCP_PORTS),
        ("udp", socket.SOCK_DGRAM, UDP_PORTS),
    ):
        for port in ports:
            said[name, port] = "nothing"
            opened = begin(kind, family, address, port)
            selector.register(opened, selectors.EVENT_READ, (name, port))
    until = time.monotonic() + PATIENCE
    while selector.get_map() and (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            said[key.data] = heard(key.fileobj)
            selector.unregister(key.fileobj)
    refused = refusals(watch, is_v6)
    for port, answer in said.items():
        # The host's own error for a refusal depends on its kernel, so the frame is printed.
        if answer not in ("hello", "question"):
            answer = " ".join(sorted(refused.get(port, ()))) or answer
        print(*port, answer, flush=True)


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[2])
