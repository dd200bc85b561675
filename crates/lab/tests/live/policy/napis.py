"""Lists the NAPIs of an interface with their settings, or sets one: INTERFACE [PLACE NAME VALUE]."""

import socket
import struct
import sys

NAMES = {5: "defer-hard-irqs", 6: "gro-flush-timeout", 7: "irq-suspend-timeout", 8: "threaded"}
LIST, SET = 11, 14


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[(length + 3) // 4 * 4 :]


def ask(family, flags, command, body):
    head = struct.pack("=IHHIIBBH", 20 + len(body), family, flags, 1, 0, command, 1, 0)
    netlink.send(head + body)
    while True:
        data = netlink.recv(65536)
        while data:
            length, kind = struct.unpack_from("=IH", data)
            if kind == 2 and struct.unpack_from("=i", data, 16)[0] != 0:
                sys.exit(f"error {struct.unpack_from('=i', data, 16)[0]}")
            if kind in (2, 3):
                return
            yield dict(attributes(data[20:length]))
            data = data[(length + 3) // 4 * 4 :]


netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
netlink.bind((0, 0))
[family] = ask(16, 5, 3, attribute(2, b"netdev\0"))
[family] = struct.unpack("=H", family[1])
interface = struct.pack("=I", socket.if_nametoindex(sys.argv[1]))
napis = sorted(ask(family, 0x301, LIST, attribute(1, interface)), key=lambda it: it[2][::-1])
if len(sys.argv) == 2:
    for place, napi in enumerate(napis):
        values = (f"{name}={int.from_bytes(napi[kind], 'little')}" for kind, name in NAMES.items())
        print(f"napi-{place}", *values)
else:
    place, name, value = int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    [kind] = [kind for kind, it in NAMES.items() if it == name]
    new = struct.pack("=I", value)
    list(ask(family, 5, SET, attribute(2, napis[place][2]) + attribute(kind, new)))
