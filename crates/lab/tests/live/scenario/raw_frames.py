"""Raw frames at eth0 in hexadecimal: `send` reads them from stdin, `listen` prints arrivals.

`offload` sends frames with a virtio header in front, which says what the sender leaves to others.
It leaves out frames that the kernel refuses."""

import errno
import socket
import sys

ETH_P_ALL = 3
LEAVES = 4
PACKET_VNET_HDR = 15
SOL_PACKET = 263
SO_RCVBUFFORCE = 33

link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
# The buffer is large, so that no frame is lost while others are printed.
link.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
link.bind(("eth0", 0))
if sys.argv[1] == "send":
    for line in sys.stdin:
        link.send(bytes.fromhex(line))
elif sys.argv[1] == "offload":
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    for line in sys.stdin:
        try:
            link.send(bytes.fromhex(line))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EMSGSIZE):
                raise
else:
    print("ready", flush=True)
    while True:
        frame, (_, _, kind, _, _) = link.recvfrom(65536)
        if kind != LEAVES:
            print(frame.hex(), flush=True)
