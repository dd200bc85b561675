"""Makes random packets of pfsync, each followed by the fields that are in it.

Usage: encode.py SEED COUNT

Prints for each packet a line with the dialect (1301, 1400, 1500 or 6), a blank and the packet
without its IP header in hexadecimal digits, then one line for each message, then "end". The offsets
below repeat the layout tables of docs/internals/pfsync.md and share nothing with the encoder that
they check.
"""

import random
import struct
import sys

TIMEOUTS = list(range(14)) + list(range(20, 25))
NAMES = ["em0", "igc1.100", "all", "wg0", "a123456789bcdef"]

# name: (offset, format). The names of arrays end in the index of their elements.
PEER = {
    "flags": (0, "H"), "ttl": (2, "B"), "scrub_flag": (3, "B"), "ts_mod": (4, "I"),
    "seqlo": (8, "I"), "seqhi": (12, "I"), "seqdiff": (16, "I"), "max_win": (20, "H"),
    "mss": (22, "H"), "state": (24, "B"), "wscale": (25, "B"),
}
# Offsets of the parts that all states have, and of their first key's length.
FREEBSD = {
    "id": (0, "Q"), "ifname": (8, "16s"), "key0": (24, "key"), "key1": (60, "key"),
    "src": (96, "peer"), "dst": (128, "peer"), "rt_addr": (160, "16s"), "rule": (176, "I"),
    "anchor": (180, "I"), "nat_rule": (184, "I"), "creation": (188, "I"), "expire": (192, "I"),
    "packets0": (196, "Q"), "packets1": (204, "Q"), "bytes0": (212, "Q"), "bytes1": (220, "Q"),
    "creatorid": (228, "I"),
}
V1301 = FREEBSD | {
    "af": (232, "B"), "proto": (233, "B"), "dir": (234, "B"), "log": (237, "B"),
    "state_flags": (238, "B"), "timeout": (239, "B"), "sync_flags": (240, "B"),
    "updates": (241, "B"),
}
V1400 = FREEBSD | {
    "af": (232, "B"), "proto": (233, "B"), "dir": (234, "B"), "state_flags": (235, "H"),
    "log": (237, "B"), "timeout": (239, "B"), "sync_flags": (240, "B"), "updates": (241, "B"),
    "qid": (242, "H"), "pqid": (244, "H"), "dnpipe": (246, "H"), "dnrpipe": (248, "H"),
    "rtableid": (250, "I"), "min_ttl": (254, "B"), "set_tos": (255, "B"), "max_mss": (256, "H"),
    "set_prio0": (258, "B"), "set_prio1": (259, "B"), "rt": (260, "B"), "rt_ifname": (261, "16s"),
}
V1500 = FREEBSD | {
    "tagname": (232, "64s"), "rt_ifname": (296, "16s"), "orig_ifname": (312, "16s"),
    "rtableid": (328, "I"), "state_flags": (332, "H"), "qid": (334, "H"), "pqid": (336, "H"),
    "dnpipe": (338, "H"), "dnrpipe": (340, "H"), "max_mss": (342, "H"), "wire_af": (344, "B"),
    "stack_af": (345, "B"), "rt_af": (346, "B"), "wire_proto": (347, "B"),
    "stack_proto": (348, "B"), "log": (349, "B"), "timeout": (350, "B"), "dir": (351, "B"),
    "rt": (352, "B"), "min_ttl": (353, "B"), "set_tos": (354, "B"), "set_prio0": (355, "B"),
    "set_prio1": (356, "B"),
}
V6 = {
    "id": (0, "Q"), "ifname": (8, "16s"), "key0": (24, "key"), "key1": (64, "key"),
    "src": (104, "peer"), "dst": (136, "peer"), "rt_addr": (168, "16s"), "rule": (184, "I"),
    "anchor": (188, "I"), "nat_rule": (192, "I"), "creation": (196, "I"), "expire": (200, "I"),
    "packets0": (204, "Q"), "packets1": (212, "Q"), "bytes0": (220, "Q"), "bytes1": (228, "Q"),
    "creatorid": (236, "I"), "rtableid0": (240, "I"), "rtableid1": (244, "I"),
    "max_mss": (248, "H"), "af": (250, "B"), "proto": (251, "B"), "dir": (252, "B"),
    "log": (253, "B"), "rt": (254, "B"), "timeout": (255, "B"), "sync_flags": (256, "B"),
    "updates": (257, "B"), "min_ttl": (258, "B"), "set_tos": (259, "B"),
    "state_flags": (260, "H"), "set_prio0": (262, "B"), "set_prio1": (263, "B"),
}
STATES = {1301: (242, V1301), 1400: (277, V1400), 1500: (360, V1500), 6: (264, V6)}
# Numbers of insert and update.
FULL = {1301: (1, 3), 1400: (13, 14), 1500: (15, 16), 6: (13, 14)}
UPD_C = {
    "id": (0, "Q"), "src": (8, "peer"), "dst": (40, "peer"), "creatorid": (72, "I"),
    "expire": (76, "I"), "timeout": (80, "B"),
}
IDENT = {"id": (0, "Q"), "creatorid": (8, "I")}
CLR = {"ifname": (0, "16s"), "creatorid": (16, "I")}
BUS = {"creatorid": (0, "I"), "endtime": (4, "I"), "status": (8, "B")}
TDB = {
    "spi": (0, "I"), "dst": (4, "28s"), "rpl": (32, "I"), "bytes": (36, "Q"), "sproto": (44, "B"),
    "updates": (45, "B"),
}


def number(rng, form):
    bits = 8 * struct.calcsize(">" + form)
    return rng.choice([0, 1, 2**bits - 1, rng.getrandbits(bits)])


def address(rng, is_v6):
    if is_v6:
        return bytes.fromhex("20010db8") + rng.randbytes(12)
    return bytes([198, 51, 100, rng.getrandbits(8)]) + bytes(12)


def peer(rng, proto):
    """The fields of one end. Only TCP and SCTP (and any, in UPD_C) have all."""
    fields = dict.fromkeys(PEER, 0)
    if proto in (6, 132, None):
        for name in ("seqlo", "seqhi", "seqdiff", "max_win", "mss"):
            fields[name] = number(rng, PEER[name][1])
        if rng.random() < 0.5:
            fields["wscale"] = 0x80 | rng.randrange(15)
        if rng.random() < 0.5:
            fields |= {"scrub_flag": 1, "flags": rng.choice([0, 1])}
            fields |= {"ttl": rng.getrandbits(8), "ts_mod": rng.getrandbits(32)}
    highest = {6: 12, 132: 255, None: 255}.get(proto, 2)
    fields["state"] = rng.randint(0, highest)
    return fields


def key(rng, dialect, is_v6, af):
    fields = [address(rng, is_v6), address(rng, is_v6), rng.getrandbits(16), rng.getrandbits(16)]
    return fields + ([rng.getrandbits(16), af] if dialect == 6 else [])


def put(into, at, form, value):
    """Writes a field at its offset."""
    if form == "peer":
        for name, (offset, part) in PEER.items():
            struct.pack_into(">" + part, into, at + offset, value[name])
    elif form == "key":
        struct.pack_into(">16s16sHH", into, at, *value[:4])
        if len(value) > 4:
            struct.pack_into(">HB", into, at + 36, *value[4:])
    else:
        struct.pack_into(">" + form, into, at, value)


def shown(form, value):
    if form == "peer":
        return "/".join(str(value[name]) for name in PEER)
    if form == "key":
        return "/".join(it.hex() if isinstance(it, bytes) else str(it) for it in value)
    return value.hex() if isinstance(value, bytes) else str(value)


def laid_out(action, size, layout, values, extra=""):
    """The bytes of a message and its line."""
    into = bytearray(size)
    line = str(action)
    for name, (at, form) in layout.items():
        value = values[name]
        is_name = isinstance(value, str)
        put(into, at, form, value.encode() if is_name else value)
        line += f" {name}={value if is_name else shown(form, value)}"
    return action, bytes(into), line + extra


def state(rng, dialect, action):
    size, layout = STATES[dialect]
    families = {False: 2, True: 24 if dialect == 6 else 28}
    is_v6 = rng.random() < 0.5
    inside_v6 = (not is_v6) if dialect in (1500, 6) and rng.random() < 0.2 else is_v6
    icmp = {False: 1, True: 58}
    proto = rng.choice([6, 6, 17, icmp[is_v6], 47, 132])
    inside = icmp[inside_v6] if proto in (1, 58) else proto
    values = {name: number(rng, form) for name, (_, form) in layout.items() if len(form) == 1}
    route_v6 = rng.choice([None, False, True] if dialect == 1500 else [None, is_v6])
    values |= {
        "creatorid": rng.randint(1, 2**32 - 1),
        "key0": key(rng, dialect, is_v6, families[is_v6]),
        "key1": key(rng, dialect, inside_v6, families[inside_v6]),
        "src": peer(rng, proto), "dst": peer(rng, proto),
        "rt_addr": bytes(16) if route_v6 is None else address(rng, route_v6),
        "af": families[is_v6], "wire_af": families[is_v6], "stack_af": families[inside_v6],
        "rt_af": 0 if route_v6 is None else families[route_v6],
        "proto": proto, "wire_proto": proto, "stack_proto": inside,
        "dir": rng.choice([1, 2]), "timeout": rng.choice(TIMEOUTS),
        "tagname": rng.choice(["", "voice", "x" * 63]),
    }
    for name in ("ifname", "rt_ifname", "orig_ifname"):
        values[name] = rng.choice(NAMES)
    return laid_out(action, size, layout, values)


def message(rng, dialect):
    ident = {"id": number(rng, "Q"), "creatorid": rng.randint(1, 2**32 - 1)}
    kind = rng.randrange(9 if dialect == 6 else 10)
    if kind == 0:
        values = ident | {"ifname": rng.choice([""] + NAMES)}
        return laid_out(0, 20, CLR, values)
    if kind == 1:
        return state(rng, dialect, FULL[dialect][0])
    if kind == 2:
        return state(rng, dialect, FULL[dialect][1])
    if kind == 3 and dialect in (1301, 6):
        return state(rng, dialect, 6)
    if kind == 4:
        values = ident | {"src": peer(rng, None), "dst": peer(rng, None)}
        values |= {"expire": number(rng, "I"), "timeout": rng.choice(TIMEOUTS)}
        layout = UPD_C
        if dialect == 6:
            layout = UPD_C | {"state_flags": (81, "B")}
            values["state_flags"] = rng.getrandbits(8)
        return laid_out(4, 84, layout, values)
    if kind == 5:
        return laid_out(10, 12, BUS, ident | {"endtime": number(rng, "I"), "status": rng.choice([1, 2])})
    if kind == 6 and rng.random() < 0.5:
        return laid_out(5, 12, IDENT, {"id": 0, "creatorid": 0})
    if kind == 9:
        values = {name: number(rng, form) for name, (_, form) in TDB.items() if len(form) == 1}
        return laid_out(11, 48, TDB, values | {"dst": rng.randbytes(28)})
    return laid_out(rng.choice([2, 5, 7]), 12, IDENT, ident)


def packet(rng, dialect):
    body, lines = b"", []
    groups = []
    for _ in range(rng.randrange(9)):
        action, data, line = message(rng, dialect)
        lines.append(line)
        if groups and groups[-1][0] == action and rng.random() < 0.8:
            groups[-1][1].append(data)
        else:
            groups.append((action, [data]))
    for action, messages in groups:
        second = len(messages[0]) // 4 if dialect == 6 else 0
        body += struct.pack(">BBH", action, second, len(messages)) + b"".join(messages)
    if dialect != 6:
        body += struct.pack(">BBH", 12, 0, 1)
    version = 6 if dialect == 6 else 5
    return struct.pack(">BBH16x", version, 0, 20 + len(body)) + body, lines


def main():
    seed, count = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    for _ in range(count):
        for dialect in STATES:
            data, lines = packet(rng, dialect)
            print(dialect, data.hex())
            for line in lines:
                print(line)
            print("end")


main()
