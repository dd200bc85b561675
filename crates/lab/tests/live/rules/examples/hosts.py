#!/usr/bin/env python3
"""Plays all hosts around a gateway, and reports the outcome of each packet that they sent.

The far end of the gateway's interface "lan0" is "far-lan0", and so on. The program takes a file
with JSON: "interfaces", their names; "talks", exchanges of hosts; and "expected", which may be
null: for each step of each talk the number of frames ("count") that it caused in another run, and
the frames ("optional") that this run may leave out. Without "expected" the gateway is the kernel:
the frames of a step arrive before a mark that follows them through the same cables. With it the
gateway is a program, and this one waits for as many frames as in the other run. It does not wait
for optional frames, and drops one that comes during a later step.

A talk has a "kind", the interface "at" which it starts, the addresses "from" and "to", and the
ports "sport" and "dport". A host answers to the addresses in the packet that it got, so the answer
needs the reverse translation. The program prints a line of JSON for each talk: a list of its steps.
Each step is a list of frames as {"at", "what", "ends"}. The ends are source, source port,
destination and destination port, and the same for the packet that an error quotes.
"""
import ipaddress
import json
import os
import select
import socket
import struct
import sys
import time
import zlib
from collections import Counter

from cables import cable, received, station

# An experimental EtherType (IEEE Std 802) that no gateway forwards.
ETH_P_MARK = 0x88B5
MAC = bytes.fromhex("02005e005301")
# The time in seconds to wait for a frame that arrived in the other run. After TIMES waits in
# vain, the shorter time applies.
PATIENCE, TIMES, LESS_PATIENCE = 1.5, 4, 0.1
# The time in seconds to wait after a step to which no frame belonged in the other run.
GRACE = 0.008
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
NAMES = ((SYN, "S"), (ACK, "A"), (PSH, "P"), (FIN, "F"), (RST, "R"))
OPENING, ANSWERING = 1_000_000, 2_000_000


def total(data):
    data += bytes(len(data) % 2)
    value = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while value >> 16:
        value = (value & 0xFFFF) + (value >> 16)
    return value


class Packet:
    """A packet of either version of IP."""

    def __init__(self, source, destination, protocol, body, hops=64, cut=0):
        self.source, self.destination = map(ipaddress.ip_address, (source, destination))
        self.protocol, self.body, self.hops, self.cut = protocol, body, hops, cut

    def end(self):
        """The sender's end."""
        return str(self.source), struct.unpack_from("!H", self.body)[0]

    def pseudo(self, length):
        ends = self.source.packed + self.destination.packed
        return ends + struct.pack("!II", length, self.protocol)

    def summed(self):
        """The body with its checksum."""
        if self.protocol == 1:
            return self.body[:2] + struct.pack("!H", 0xFFFF ^ total(self.body)) + self.body[4:]
        at = {6: 16, 17: 6, 58: 2}[self.protocol]
        value = 0xFFFF ^ total(self.pseudo(len(self.body)) + self.body)
        return self.body[:at] + struct.pack("!H", value) + self.body[at + 2:]

    def frames(self, mac):
        body = self.summed()
        pieces = [(0, body)]
        if self.cut:
            pieces = [(0, body[:self.cut]), (self.cut, body[self.cut:])]
        for at, piece in pieces:
            more = len(pieces) > 1 and at == 0
            if self.source.version == 4:
                header = struct.pack(
                    "!BBHHHBBH4s4s", 0x45, 0, 20 + len(piece), 0x1234 if self.cut else 0,
                    0x2000 * more + at // 8 if self.cut else 0x4000, self.hops, self.protocol, 0,
                    self.source.packed, self.destination.packed)
                value = 0xFFFF ^ total(header)
                header = header[:10] + struct.pack("!H", value) + header[12:]
                yield mac + MAC + b"\x08\x00" + header + piece
            else:
                if self.cut:
                    piece = struct.pack("!BBHI", self.protocol, 0, at | more, 0x1234) + piece
                yield mac + MAC + b"\x86\xdd" + struct.pack(
                    "!IHBB", 6 << 28, len(piece), 44 if self.cut else self.protocol,
                    self.hops) + self.source.packed + self.destination.packed + piece


def shown(data):
    return repr(data) if len(data) < 40 else f"{len(data)} bytes {zlib.crc32(data):08x}"


def tcp(talk, flags, sequence, acknowledged, data=b""):
    options = bytes([2, 4, 5, 180]) if flags & SYN else b""
    body = struct.pack("!HHIIBBHHH", talk["sport"], talk["dport"], sequence, acknowledged,
                       (20 + len(options)) << 2, flags, 8192, 0, 0) + options + data
    return Packet(talk["from"], talk["to"], 6, body)


def udp(talk, data, **how):
    body = struct.pack("!HHHH", talk["sport"], talk["dport"], 8 + len(data), 0) + data
    return Packet(talk["from"], talk["to"], 17, body, **how)


def echo(talk, is_reply, data=b"are you there?"):
    is_v4 = ":" not in talk["from"]
    kind = (0 if is_reply else 8) if is_v4 else (129 if is_reply else 128)
    body = struct.pack("!BBHHH", kind, 0, 0, talk["sport"], 1) + data
    return Packet(talk["from"], talk["to"], 1 if is_v4 else 58, body)


def refusal(source, destination, quoted, kind, code):
    """An error about a packet, from its first byte."""
    protocol = 1 if ipaddress.ip_address(source).version == 4 else 58
    body = struct.pack("!BBHI", kind, code, 0, 0) + quoted[:120]
    return Packet(source, destination, protocol, body)


class Came:
    """A frame that arrived, or the packet that an error quotes."""

    def __init__(self, at, packet, is_quoted=False):
        self.at, self.packet = at, packet
        self.sport = self.dport = 0
        self.what, self.quoted, sums = [], [], True
        if packet[0] >> 4 == 4:
            start = (packet[0] & 15) * 4
            self.source, self.destination = packet[12:16], packet[16:20]
            self.protocol, hops = packet[9], packet[8]
            length, offset = struct.unpack_from("!H2xH", packet, 2)
            more, offset = offset & 0x2000, (offset & 0x1FFF) * 8
            sums = total(packet[:start]) == 0xFFFF
        else:
            start, length = 40, 40 + struct.unpack_from("!H", packet, 4)[0]
            self.source, self.destination = packet[8:24], packet[24:40]
            self.protocol, hops, more, offset = packet[6], packet[7], 0, 0
            if self.protocol == 44:
                self.protocol, offset = packet[40], struct.unpack_from("!H", packet, 42)[0]
                start, more, offset = 48, offset & 1, offset & 0xFFF8
        self.source, self.destination = (
            str(ipaddress.ip_address(it)) for it in (self.source, self.destination))
        self.body = packet[start:length]
        is_whole = not more and not offset
        if not is_quoted:
            self.what.append(f"{hops} hops")
        if not is_whole:
            self.what.append(f"from byte {offset}")
        if offset == 0:
            read = {1: self.icmp, 58: self.icmp, 6: self.tcp, 17: self.udp}.get(self.protocol)
            if read:
                read(is_quoted)
        else:
            self.what.append(shown(self.body))
        if is_whole and not is_quoted and self.protocol in (1, 6, 17, 58):
            is_ours = self.protocol != 6 or not self.flags & RST
            pseudo = b"" if self.protocol == 1 else Packet(
                self.source, self.destination, self.protocol, b"").pseudo(len(self.body))
            # The kernel leaves the checksum of its resets to the interface.
            sums = sums and (not is_ours or total(pseudo + self.body) == 0xFFFF)
        if not sums and not is_quoted:
            self.what.append("wrong sum")

    def tcp(self, is_quoted):
        if is_quoted:
            self.sport, self.dport = struct.unpack_from("!HH", self.body)
            return
        self.sport, self.dport, self.sequence, self.acknowledged, at, self.flags, window = (
            struct.unpack_from("!HHIIBBH", self.body))
        at = (at >> 4) * 4
        self.data = self.body[at:]
        flags = "".join(name for flag, name in NAMES if self.flags & flag)
        self.what += [f"tcp {flags} {self.sequence} {self.acknowledged} window {window}",
                      f"options {self.body[20:at].hex()}", repr(self.data)]

    def udp(self, is_quoted):
        self.sport, self.dport = struct.unpack_from("!HH", self.body)
        self.what.append("udp")
        if not is_quoted:
            self.what.append(shown(self.body[8:]))

    def icmp(self, is_quoted):
        kind, code = self.body[:2]
        self.what.append(f"icmp {kind} {code}")
        if kind in ((0, 8) if self.protocol == 1 else (128, 129)):
            # The identifier counts as the port of the asking host.
            self.query, = struct.unpack_from("!H", self.body, 4)
            is_question = kind in (8, 128)
            self.sport, self.dport = (self.query, 0) if is_question else (0, self.query)
            self.what.append("" if is_quoted else repr(self.body[6:]))
        elif not is_quoted:
            quoted = Came(self.at, self.body[8:], True)
            self.what += ["about"] + quoted.what
            self.quoted = quoted.ends()

    def ends(self):
        return [self.source, self.sport, self.destination, self.dport] + self.quoted

    def told(self):
        return {"at": self.at, "what": " ".join(self.what), "ends": self.ends()}

    def answered(self):
        """A talk in the opposite direction."""
        return {"at": self.at, "from": self.destination, "to": self.source,
                "sport": self.dport, "dport": self.sport}


class Cables:
    def __init__(self, interfaces, waits):
        self.waits, self.marks, self.in_vain = waits, 0, 0
        # Optional frames of former steps that have not come.
        self.late = Counter()
        self.far, self.near, self.macs = {}, {}, {}
        for name in interfaces:
            self.far[name] = cable(f"far-{name}")
            if not waits:
                self.near[name] = cable(name, ETH_P_MARK)
            self.macs[name] = station(name)

    def received(self, name, opened):
        """The packets of hosts and the marks that have arrived, without those sent here."""
        for frame in received(opened):
            kind = frame[12:14]
            if kind == struct.pack("!H", ETH_P_MARK):
                yield frame
            elif kind in (b"\x08\x00", b"\x86\xdd"):
                came = Came(name, frame[14:])
                # Neighbour and router discovery and multicast reports are no answers.
                if came.protocol == 58 and (130 <= came.body[0] <= 137 or came.body[0] == 143):
                    continue
                if came.protocol not in (0, 2):
                    yield came

    def mark(self, name, source, target, came):
        self.marks += 1
        mark = b"\xff" * 6 + MAC + struct.pack("!HQ", ETH_P_MARK, self.marks) + bytes(40)
        source.send(mark)
        while True:
            if not select.select([target], [], [], 5)[0]:
                sys.exit("a frame is lost between two ends of a cable")
            for it in self.received(name, target):
                if it == mark:
                    return
                if isinstance(it, Came):
                    came.append(it)

    def step(self, at, packets, expected):
        """Sends packets and returns the frames that arrive."""
        for packet in packets:
            for frame in packet.frames(self.macs[at]):
                self.far[at].send(frame)
        came = []
        if not self.waits:
            for name in self.far:
                self.mark(name, self.far[name], self.near[name], [])
            for name in self.far:
                self.mark(name, self.near[name], self.far[name], came)
            return came
        count = expected["count"]
        # The two runs may choose other ends, but both refuse the packet that was sent.
        end = packets[0].end()
        optional = Counter((it["at"], it["what"], end) for it in expected["optional"])
        patience = PATIENCE if self.in_vain < TIMES else LESS_PATIENCE
        until = time.monotonic() + (patience if count else GRACE)
        while len(came) < count or count == 0:
            left = until - time.monotonic()
            if left <= 0:
                self.in_vain += count > 0
                break
            select.select(list(self.far.values()), [], [], left)
            for name, opened in self.far.items():
                frames = (it for it in self.received(name, opened) if isinstance(it, Came))
                came += (it for it in frames if not self.is_late(it, optional))
        self.late += optional
        return came

    def is_late(self, frame, optional):
        """True for an optional frame of a former step."""
        told = frame.told()
        it = told["at"], told["what"], refused_end(told)
        if optional[it]:
            optional[it] -= 1
            return False
        if not self.late[it]:
            return False
        self.late[it] -= 1
        return True


def refused_end(told):
    """The end whose packet this reset or error refuses."""
    ends = told["ends"]
    return tuple(ends[4:6] or ends[2:4])


class Talk:
    def __init__(self, cables, talk, expected):
        self.cables, self.talk, self.expected, self.steps = cables, talk, expected, []
        getattr(self, talk["kind"])()

    def step(self, at, *packets):
        """Sends packets. Returns the frame that arrived if it is exactly one and no refusal."""
        number = len(self.steps)
        nothing = {"count": 0, "optional": []}
        expected = self.expected[number] if number < len(self.expected) else nothing
        came = self.cables.step(at, packets, expected)
        # Resets and errors may precede forwarded frames, and fragments may come in any order.
        came.sort(key=lambda it: (it.at, it.what))
        self.steps.append([it.told() for it in came])
        if len(came) != 1 or came[0].protocol != packets[0].protocol:
            return None
        if came[0].quoted or came[0].protocol == 6 and came[0].flags & RST:
            return None
        return came[0]

    def connect(self):
        talk = self.talk
        syn = self.step(talk["at"], tcp(talk, SYN, OPENING, 0))
        if not syn:
            # Sends it again: a refused packet must be refused again.
            self.step(talk["at"], tcp(talk, SYN, OPENING, 0))
            return
        back = syn.answered()
        said = b"question %d" % talk["sport"]
        if not self.step(back["at"], tcp(back, SYN | ACK, ANSWERING, OPENING + 1)):
            return
        self.step(talk["at"], tcp(talk, ACK, OPENING + 1, ANSWERING + 1))
        self.step(talk["at"], tcp(talk, PSH | ACK, OPENING + 1, ANSWERING + 1, said))
        seen = OPENING + 1 + len(said)
        self.step(back["at"], tcp(back, PSH | ACK, ANSWERING + 1, seen, b"answer"))
        # A router on the path reports that the answer is too long.
        kind, code = (3, 4) if "." in talk["to"] else (2, 0)
        self.step(talk["at"], refusal(talk["from"], talk["to"], self.seen(), kind, code))
        self.step(talk["at"], tcp(talk, FIN | ACK, seen, ANSWERING + 7))
        self.step(back["at"], tcp(back, FIN | ACK, ANSWERING + 7, seen + 1))
        self.step(talk["at"], tcp(talk, ACK, seen + 1, ANSWERING + 8))

    def seen(self):
        """The last answer as it reached the asking host, for a quote."""
        talk = self.talk
        back = dict(talk, **{"from": talk["to"], "to": talk["from"],
                             "sport": talk["dport"], "dport": talk["sport"]})
        return b"".join(tcp(back, PSH | ACK, ANSWERING + 1, OPENING + 1, b"answer").frames(b""))[8:]

    def refused(self):
        """A connection that the server resets."""
        talk = self.talk
        syn = self.step(talk["at"], tcp(talk, SYN, OPENING, 0))
        if syn:
            self.step(syn.at, tcp(syn.answered(), RST | ACK, 0, OPENING + 1))
            self.step(syn.at, tcp(syn.answered(), ACK, 1, OPENING + 1))

    def stray(self):
        """A segment of an unknown connection."""
        self.step(self.talk["at"], tcp(self.talk, self.talk["flags"], OPENING, 0))

    def ask(self):
        talk = self.talk
        asked = self.step(talk["at"], udp(talk, b"question %d" % talk["sport"]))
        if asked:
            back = asked.answered()
            self.step(back["at"], udp(back, b"answer"))
            self.step(talk["at"], udp(talk, b"and another"))
            self.step(back["at"], udp(back, b"and its answer"))

    def unreachable(self):
        """A datagram for a closed port."""
        talk = self.talk
        asked = self.step(talk["at"], udp(talk, b"question %d" % talk["sport"]))
        if asked:
            kind, code = (3, 3) if asked.packet[0] >> 4 == 4 else (1, 4)
            self.step(asked.at, refusal(asked.destination, asked.source, asked.packet, kind, code))

    def long(self):
        """A datagram in two fragments, and its answer."""
        talk = self.talk
        data = bytes(range(32, 112)) * 10
        self.step(talk["at"], udp(talk, data, cut=408))
        came = self.steps[-1]
        first = next((it for it in came if it["ends"][1]), None)
        if len(came) == 2 and first and {it["at"] for it in came} == {first["at"]}:
            source, sport, destination, dport = first["ends"]
            back = {"from": destination, "to": source, "sport": dport, "dport": sport}
            self.step(first["at"], udp(back, data[::-1], cut=400))

    def ping(self):
        talk = self.talk
        asked = self.step(talk["at"], echo(talk, False))
        if asked:
            self.step(asked.at, echo(dict(asked.answered(), sport=asked.query), True))

    def last_hop(self):
        """A datagram whose time to live ends at the gateway."""
        self.step(self.talk["at"], udp(self.talk, b"who is there?", hops=1))

    def about_nothing(self):
        """An error about a packet that was never sent."""
        talk = self.talk
        quoted = dict(talk, **{"from": talk["to"], "to": talk["from"]})
        quoted = b"".join(udp(quoted, b"question").frames(b""))[8:]
        kind, code = (3, 3) if "." in talk["to"] else (1, 4)
        self.step(talk["at"], refusal(talk["from"], talk["to"], quoted, kind, code))


def main():
    with open(sys.argv[1]) as file:
        order = json.load(file)
    expected = order["expected"]
    if expected is None:
        # One CPU keeps frames in order.
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    cables = Cables(order["interfaces"], expected is not None)
    for number, talk in enumerate(order["talks"]):
        time.sleep(talk.get("pause", 0))
        played = Talk(cables, talk, expected[number] if expected else [])
        print(json.dumps(played.steps))


main()
