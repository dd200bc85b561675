#!/usr/bin/env python3
"""Says how ports answer, in words that depend on the gateway in between and on nothing else.

    probe.py serve           answers on all ports until it is killed
    probe.py ask ADDRESS     asks them, and prints a line for each

A gateway that refuses is told apart by what it sends: flags and numbers of a reset, type and
code of an error.
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
# How long an answer is waited for, seconds.
PATIENCE = 0.7


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
    """What a frame says, if it refuses something."""
    if frame[12:14] != (b"\x86\xdd" if is_v6 else b"\x08\x00"):
        return None
    at = 54 if is_v6 else 14 + 4 * (frame[14] & 15)
    protocol = frame[20] if is_v6 else frame[23]
    if protocol == 6 and frame[at + 13] & 4:
        sequence, acknowledgment, window = struct.unpack("!II2xH", frame[at + 4 : at + 16])
        return f"reset flags {frame[at + 13]:#x} window {window} from number {bool(sequence)}"
    if protocol == (58 if is_v6 else 1) and frame[at] in ((1,) if is_v6 else (3, 11)):
        return f"error {frame[at]} {frame[at + 1]}"
    return None


def attempt(kind, address, port, family, watch, is_v6):
    while True:
        try:
            watch.recv(65536)
        except BlockingIOError:
            break
    opened = socket.socket(family, kind)
    opened.settimeout(PATIENCE)
    try:
        opened.connect((address, port))
        if kind == socket.SOCK_DGRAM:
            opened.send(b"question")
        said = opened.recv(100).decode()
    except socket.timeout:
        said = "nothing"
    except OSError as error:
        said = errno.errorcode[error.errno]
    opened.close()
    if said in ("hello", "question"):
        return said
    time.sleep(0.02)
    seen = set()
    while True:
        try:
            frame, sender = watch.recvfrom(65536)
        except BlockingIOError:
            break
        if sender[2] != socket.PACKET_OUTGOING:
            seen.add(refusal(frame, is_v6))
    # What a host makes of a refusal is its own affair.
    return " ".join(sorted(seen - {None})) or said


def ask(address):
    is_v6 = ":" in address
    family = socket.AF_INET6 if is_v6 else socket.AF_INET
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    watch.bind(("eth0", ETH_P_ALL))
    watch.setblocking(False)
    for name, kind, ports in (
        ("tcp", socket.SOCK_STREAM, TCP_PORTS),
        ("udp", socket.SOCK_DGRAM, UDP_PORTS),
    ):
        for port in ports:
            print(name, port, attempt(kind, address, port, family, watch, is_v6), flush=True)


if sys.argv[1] == "serve":
    serve()
else:
    ask(sys.argv[2])
