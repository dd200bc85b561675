import os, select, signal, socket, struct, subprocess, sys, threading, time
real, own, kind, what, *asks = sys.argv[1:3] + [int(sys.argv[3])] + sys.argv[4:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(own)
listener.listen()
print('ready', flush=True)
new, _ = listener.accept()
# Other requests of the new process go through as they are.
def pump(source, to):
    while data := source.recv(1 << 16): to.sendall(data)
    to.shutdown(socket.SHUT_WR)
def relay():
    while True:
        client, _ = listener.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(real)
        for ends in ((client, server), (server, client)):
            threading.Thread(target=pump, args=ends, daemon=True).start()
threading.Thread(target=relay, daemon=True).start()
old = socket.socket(socket.AF_UNIX)
old.connect(real)
process = lambda s: struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
processes = {'old': process(old), 'new': process(new)}
def head(source, to):
    text = b''
    while not text.endswith(b'\r\n\r\n'): text += source.recv(1)
    to.sendall(text)
head(new, old)
head(old, new)
received, descriptors = {new: b'', old: b''}, {new: [], old: []}
def act(to):
    global what
    print('acts', flush=True)
    if what == 'garbage': to.sendall(struct.pack('>IBB', 7, 0, 200) + b'12345')
    elif what == 'ask': subprocess.run(asks, check=True)
    elif what == 'cut': to.sendall(struct.pack('>IBB', 100, 0, 5) + b'1')
    else: os.kill(processes[what], signal.SIGKILL)
    if what in ('cut', 'old'): to.shutdown(socket.SHUT_RDWR)
    what = 'done'
while True:
    for source in select.select([new, old], [], [])[0]:
        to = old if source is new else new
        try: data, came, _, _ = socket.recv_fds(source, 1 << 16, 8)
        except OSError: data, came = b'', []
        if not data: sys.exit()
        received[source] += data
        descriptors[source] += came
        while len(received[source]) >= 6:
            length, count, is_kind = struct.unpack('>IBB', received[source][:6])
            if len(received[source]) < 4 + length: break
            frame, received[source] = received[source][:4 + length], received[source][4 + length:]
            passed, descriptors[source] = descriptors[source][:count], descriptors[source][count:]
            if is_kind == kind and what != 'done':
                # What a process sends that is killed does not come.
                is_lost = what == 'new' and source is new
                # One that says that it runs receives packets meanwhile.
                if is_lost: time.sleep(0.2)
                act(to)
                if is_lost: sys.exit()
            try:
                if passed: socket.send_fds(to, [frame], passed)
                else: to.sendall(frame)
            except OSError: pass
            for descriptor in passed: os.close(descriptor)
