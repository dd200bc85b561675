#!/usr/bin/env python3
"""Stands in for `stateway lab-generate`: few frames, but everything that the interface promises."""
import argparse
import json
import socket
import struct
import time

parser = argparse.ArgumentParser()
parser.add_argument("command", choices=["lab-generate"])
parser.add_argument("--interface", required=True)
parser.add_argument("--destination-mac", required=True)
parser.add_argument("--source", required=True)
parser.add_argument("--destination", required=True)
parser.add_argument("--flows", type=int, required=True)
parser.add_argument("--frame-bytes", type=int, required=True)
parser.add_argument("--seconds", type=int, required=True)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def frame(flow):
    ethernet = bytes.fromhex(options.destination_mac.replace(":", "")) + own_mac + b"\x08\x00"
    length = options.frame_bytes - 14
    addresses = socket.inet_aton(options.source) + socket.inet_aton(options.destination)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, length, flow, 0, 64, 17, 0) + addresses
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    udp = struct.pack("!HHHH", 1024 + flow, 9, length - 20, 0)
    return ethernet + ip + udp + bytes(length - 28)


FRAMES = 8192
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as out:
    out.bind((options.interface, 0))
    own_mac = out.getsockname()[4]
    frames = [frame(flow) for flow in range(options.flows)]
    start = time.monotonic()
    for number in range(FRAMES):
        out.send(frames[number % options.flows])
    seconds = time.monotonic() - start
print(json.dumps({"schema": 1, "sent": FRAMES, "seconds": seconds}))
