/*
 * Decodes packets of pfsync and prints their fields, one message a line.
 *
 * Input: lines with a dialect (1301, 1400, 1500 or 6), a blank, and a packet without its IP header
 * in hexadecimal digits. The structures below repeat the layout tables of docs/internals/pfsync.md
 * and share nothing with the decoder that they check.
 */
#define _DEFAULT_SOURCE
#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define PACKED __attribute__((packed))
#define SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)
#define AT(type, field, offset) \
    _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)

struct header { u8 version, pad; u16 length; u8 checksum[16]; } PACKED;
SIZE(header, 20); AT(header, version, 0); AT(header, pad, 1); AT(header, length, 2);
AT(header, checksum, 4);

struct subheader { u8 action, second; u16 count; } PACKED;
SIZE(subheader, 4); AT(subheader, action, 0); AT(subheader, second, 1); AT(subheader, count, 2);

struct clr { char ifname[16]; u32 creatorid; } PACKED;
SIZE(clr, 20); AT(clr, ifname, 0); AT(clr, creatorid, 16);

struct ident { u64 id; u32 creatorid; } PACKED;
SIZE(ident, 12); AT(ident, id, 0); AT(ident, creatorid, 8);

struct bus { u32 creatorid, endtime; u8 status, pad[3]; } PACKED;
SIZE(bus, 12); AT(bus, creatorid, 0); AT(bus, endtime, 4); AT(bus, status, 8); AT(bus, pad, 9);

struct tdb { u32 spi; u8 dst[28]; u32 rpl; u64 bytes; u8 sproto, updates, pad[2]; } PACKED;
SIZE(tdb, 48); AT(tdb, spi, 0); AT(tdb, dst, 4); AT(tdb, rpl, 32); AT(tdb, bytes, 36);
AT(tdb, sproto, 44); AT(tdb, updates, 45); AT(tdb, pad, 46);

struct peer {
    u16 flags; u8 ttl, scrub_flag; u32 ts_mod, seqlo, seqhi, seqdiff; u16 max_win, mss;
    u8 state, wscale, pad[6];
} PACKED;
SIZE(peer, 32); AT(peer, flags, 0); AT(peer, ttl, 2); AT(peer, scrub_flag, 3);
AT(peer, ts_mod, 4); AT(peer, seqlo, 8); AT(peer, seqhi, 12); AT(peer, seqdiff, 16);
AT(peer, max_win, 20); AT(peer, mss, 22); AT(peer, state, 24); AT(peer, wscale, 25);
AT(peer, pad, 26);

struct upd_c {
    u64 id; struct peer src, dst; u32 creatorid, expire; u8 timeout, state_flags, pad[2];
} PACKED;
SIZE(upd_c, 84); AT(upd_c, id, 0); AT(upd_c, src, 8); AT(upd_c, dst, 40);
AT(upd_c, creatorid, 72); AT(upd_c, expire, 76); AT(upd_c, timeout, 80);
AT(upd_c, state_flags, 81); AT(upd_c, pad, 82);

struct key { u8 addr[2][16]; u16 port[2]; } PACKED;
SIZE(key, 36); AT(key, addr, 0); AT(key, port, 32);

struct key6 { struct key key; u16 rdomain; u8 af, pad; } PACKED;
SIZE(key6, 40); AT(key6, key, 0); AT(key6, rdomain, 36); AT(key6, af, 38); AT(key6, pad, 39);

/* The fields from the ends of a state on have one order in all structures. */
struct middle {
    struct peer src, dst; u8 rt_addr[16]; u32 rule, anchor, nat_rule, creation, expire;
    u64 packets[2], bytes[2]; u32 creatorid;
} PACKED;

struct freebsd { u64 id; char ifname[16]; struct key key[2]; struct middle m; } PACKED;
SIZE(freebsd, 232); AT(freebsd, id, 0); AT(freebsd, ifname, 8); AT(freebsd, key[0], 24);
AT(freebsd, key[1], 60); AT(freebsd, m.src, 96); AT(freebsd, m.dst, 128);
AT(freebsd, m.rt_addr, 160); AT(freebsd, m.rule, 176); AT(freebsd, m.anchor, 180);
AT(freebsd, m.nat_rule, 184); AT(freebsd, m.creation, 188); AT(freebsd, m.expire, 192);
AT(freebsd, m.packets, 196); AT(freebsd, m.bytes, 212); AT(freebsd, m.creatorid, 228);

struct v1301 {
    struct freebsd f;
    u8 af, proto, direction, spare[2], log, state_flags, timeout, sync_flags, updates;
} PACKED;
SIZE(v1301, 242); AT(v1301, af, 232); AT(v1301, proto, 233); AT(v1301, direction, 234);
AT(v1301, spare, 235); AT(v1301, log, 237); AT(v1301, state_flags, 238);
AT(v1301, timeout, 239); AT(v1301, sync_flags, 240); AT(v1301, updates, 241);

struct v1400 {
    struct freebsd f;
    u8 af, proto, direction; u16 state_flags; u8 log, spare, timeout, sync_flags, updates;
    u16 qid, pqid, dnpipe, dnrpipe; int32_t rtableid; u8 min_ttl, set_tos; u16 max_mss;
    u8 set_prio[2], rt; char rt_ifname[16];
} PACKED;
SIZE(v1400, 277); AT(v1400, af, 232); AT(v1400, proto, 233); AT(v1400, direction, 234);
AT(v1400, state_flags, 235); AT(v1400, log, 237); AT(v1400, spare, 238);
AT(v1400, timeout, 239); AT(v1400, sync_flags, 240); AT(v1400, updates, 241);
AT(v1400, qid, 242); AT(v1400, pqid, 244); AT(v1400, dnpipe, 246); AT(v1400, dnrpipe, 248);
AT(v1400, rtableid, 250); AT(v1400, min_ttl, 254); AT(v1400, set_tos, 255);
AT(v1400, max_mss, 256); AT(v1400, set_prio, 258); AT(v1400, rt, 260);
AT(v1400, rt_ifname, 261);

struct v1500 {
    struct freebsd f;
    char tagname[64], rt_ifname[16], orig_ifname[16]; int32_t rtableid; u16 state_flags;
    u16 qid, pqid, dnpipe, dnrpipe, max_mss;
    u8 wire_af, stack_af, rt_af, wire_proto, stack_proto, log, timeout, direction, rt;
    u8 min_ttl, set_tos, set_prio[2], spare[3];
} PACKED;
SIZE(v1500, 360); AT(v1500, tagname, 232); AT(v1500, rt_ifname, 296);
AT(v1500, orig_ifname, 312); AT(v1500, rtableid, 328); AT(v1500, state_flags, 332);
AT(v1500, qid, 334); AT(v1500, pqid, 336); AT(v1500, dnpipe, 338); AT(v1500, dnrpipe, 340);
AT(v1500, max_mss, 342); AT(v1500, wire_af, 344); AT(v1500, stack_af, 345);
AT(v1500, rt_af, 346); AT(v1500, wire_proto, 347); AT(v1500, stack_proto, 348);
AT(v1500, log, 349); AT(v1500, timeout, 350); AT(v1500, direction, 351); AT(v1500, rt, 352);
AT(v1500, min_ttl, 353); AT(v1500, set_tos, 354); AT(v1500, set_prio, 355);
AT(v1500, spare, 357);

struct v6 {
    u64 id; char ifname[16]; struct key6 key[2]; struct middle m; int32_t rtableid[2];
    u16 max_mss; u8 af, proto, direction, log, rt, timeout, sync_flags, updates, min_ttl;
    u8 set_tos; u16 state_flags; u8 set_prio[2];
} PACKED;
SIZE(v6, 264); AT(v6, id, 0); AT(v6, ifname, 8); AT(v6, key[0], 24); AT(v6, key[1], 64);
AT(v6, m.src, 104); AT(v6, m.dst, 136); AT(v6, m.rt_addr, 168); AT(v6, m.rule, 184);
AT(v6, m.anchor, 188); AT(v6, m.nat_rule, 192); AT(v6, m.creation, 196);
AT(v6, m.expire, 200); AT(v6, m.packets, 204); AT(v6, m.bytes, 220);
AT(v6, m.creatorid, 236); AT(v6, rtableid, 240); AT(v6, max_mss, 248); AT(v6, af, 250);
AT(v6, proto, 251); AT(v6, direction, 252); AT(v6, log, 253); AT(v6, rt, 254);
AT(v6, timeout, 255); AT(v6, sync_flags, 256); AT(v6, updates, 257); AT(v6, min_ttl, 258);
AT(v6, set_tos, 259); AT(v6, state_flags, 260); AT(v6, set_prio, 262);

static void fail(const char *why)
{
    fflush(stdout);
    fprintf(stderr, "decode: %s\n", why);
    exit(1);
}

static void zeros(const u8 *bytes, size_t count)
{
    while (count-- > 0)
        if (*bytes++ != 0)
            fail("padding that is not zero");
}

static void hex(const u8 *bytes, size_t count)
{
    while (count-- > 0)
        printf("%02x", *bytes++);
}

static void u(const char *name, u64 value) { printf(" %s=%llu", name, (unsigned long long)value); }

static void name(const char *label, const char *field, size_t size)
{
    if (memchr(field, 0, size) == NULL)
        fail("a name without an end");
    zeros((const u8 *)field + strlen(field), size - strlen(field));
    printf(" %s=%s", label, field);
}

static void peer(const char *label, const struct peer *p)
{
    zeros(p->pad, sizeof p->pad);
    printf(" %s=%u/%u/%u/%u/%u/%u/%u/%u/%u/%u/%u", label, be16toh(p->flags), p->ttl,
        p->scrub_flag, be32toh(p->ts_mod), be32toh(p->seqlo), be32toh(p->seqhi),
        be32toh(p->seqdiff), be16toh(p->max_win), be16toh(p->mss), p->state, p->wscale);
}

static void key(const char *label, const struct key *k)
{
    printf(" %s=", label);
    hex(k->addr[0], 16);
    printf("/");
    hex(k->addr[1], 16);
    printf("/%u/%u", be16toh(k->port[0]), be16toh(k->port[1]));
}

static void middle(const struct middle *m)
{
    peer("src", &m->src);
    peer("dst", &m->dst);
    printf(" rt_addr=");
    hex(m->rt_addr, 16);
    u("rule", be32toh(m->rule));
    u("anchor", be32toh(m->anchor));
    u("nat_rule", be32toh(m->nat_rule));
    u("creation", be32toh(m->creation));
    u("expire", be32toh(m->expire));
    u("packets0", be64toh(m->packets[0]));
    u("packets1", be64toh(m->packets[1]));
    u("bytes0", be64toh(m->bytes[0]));
    u("bytes1", be64toh(m->bytes[1]));
    u("creatorid", be32toh(m->creatorid));
}

static void freebsd(const struct freebsd *f)
{
    u("id", be64toh(f->id));
    name("ifname", f->ifname, sizeof f->ifname);
    key("key0", &f->key[0]);
    key("key1", &f->key[1]);
    middle(&f->m);
}

static void state_1301(const struct v1301 *s)
{
    freebsd(&s->f);
    zeros(s->spare, sizeof s->spare);
    u("af", s->af); u("proto", s->proto); u("dir", s->direction); u("log", s->log);
    u("state_flags", s->state_flags); u("timeout", s->timeout);
    u("sync_flags", s->sync_flags); u("updates", s->updates);
}

static void state_1400(const struct v1400 *s)
{
    freebsd(&s->f);
    zeros(&s->spare, 1);
    u("af", s->af); u("proto", s->proto); u("dir", s->direction);
    u("state_flags", be16toh(s->state_flags)); u("log", s->log); u("timeout", s->timeout);
    u("sync_flags", s->sync_flags); u("updates", s->updates); u("qid", be16toh(s->qid));
    u("pqid", be16toh(s->pqid)); u("dnpipe", be16toh(s->dnpipe));
    u("dnrpipe", be16toh(s->dnrpipe)); u("rtableid", be32toh((u32)s->rtableid));
    u("min_ttl", s->min_ttl); u("set_tos", s->set_tos); u("max_mss", be16toh(s->max_mss));
    u("set_prio0", s->set_prio[0]); u("set_prio1", s->set_prio[1]); u("rt", s->rt);
    name("rt_ifname", s->rt_ifname, sizeof s->rt_ifname);
}

static void state_1500(const struct v1500 *s)
{
    freebsd(&s->f);
    zeros(s->spare, sizeof s->spare);
    name("tagname", s->tagname, sizeof s->tagname);
    name("rt_ifname", s->rt_ifname, sizeof s->rt_ifname);
    name("orig_ifname", s->orig_ifname, sizeof s->orig_ifname);
    u("rtableid", be32toh((u32)s->rtableid)); u("state_flags", be16toh(s->state_flags));
    u("qid", be16toh(s->qid)); u("pqid", be16toh(s->pqid)); u("dnpipe", be16toh(s->dnpipe));
    u("dnrpipe", be16toh(s->dnrpipe)); u("max_mss", be16toh(s->max_mss));
    u("wire_af", s->wire_af); u("stack_af", s->stack_af); u("rt_af", s->rt_af);
    u("wire_proto", s->wire_proto); u("stack_proto", s->stack_proto); u("log", s->log);
    u("timeout", s->timeout); u("dir", s->direction); u("rt", s->rt);
    u("min_ttl", s->min_ttl); u("set_tos", s->set_tos);
    u("set_prio0", s->set_prio[0]); u("set_prio1", s->set_prio[1]);
}

static void state_v6(const struct v6 *s)
{
    u("id", be64toh(s->id));
    name("ifname", s->ifname, sizeof s->ifname);
    for (int i = 0; i < 2; i++) {
        zeros(&s->key[i].pad, 1);
        key(i == 0 ? "key0" : "key1", &s->key[i].key);
        printf("/%u/%u", be16toh(s->key[i].rdomain), s->key[i].af);
    }
    middle(&s->m);
    u("rtableid0", be32toh((u32)s->rtableid[0])); u("rtableid1", be32toh((u32)s->rtableid[1]));
    u("max_mss", be16toh(s->max_mss)); u("af", s->af); u("proto", s->proto);
    u("dir", s->direction); u("log", s->log); u("rt", s->rt); u("timeout", s->timeout);
    u("sync_flags", s->sync_flags); u("updates", s->updates); u("min_ttl", s->min_ttl);
    u("set_tos", s->set_tos); u("state_flags", be16toh(s->state_flags));
    u("set_prio0", s->set_prio[0]); u("set_prio1", s->set_prio[1]);
}

/* The length of a state by the number of its message; 0 if it is another message. */
static size_t state_bytes(int dialect, u8 action)
{
    if (dialect == 6)
        return action == 6 || action == 13 || action == 14 ? 264 : 0;
    switch (action) {
    case 1: case 3: case 6: return 242;
    case 13: case 14: return 277;
    case 15: case 16: return 360;
    default: return 0;
    }
}

static size_t message_bytes(int dialect, u8 action)
{
    switch (action) {
    case 0: return 20;
    case 2: case 5: case 7: case 10: return 12;
    case 4: return 84;
    case 11: return 48;
    case 12: return 0;
    default: return state_bytes(dialect, action);
    }
}

static void state(int dialect, u8 action, const u8 *at)
{
    printf("%u", action);
    switch (dialect == 6 ? 264 : state_bytes(dialect, action)) {
    case 242: state_1301((const struct v1301 *)at); break;
    case 277: state_1400((const struct v1400 *)at); break;
    case 360: state_1500((const struct v1500 *)at); break;
    default: state_v6((const struct v6 *)at); break;
    }
    printf("\n");
}

static void message(int dialect, u8 action, const u8 *at)
{
    if (state_bytes(dialect, action) > 0) {
        state(dialect, action, at);
        return;
    }
    printf("%u", action);
    switch (action) {
    case 0: {
        const struct clr *clr = (const struct clr *)at;
        name("ifname", clr->ifname, sizeof clr->ifname);
        u("creatorid", be32toh(clr->creatorid));
        break;
    }
    case 2: case 5: case 7: {
        const struct ident *ident = (const struct ident *)at;
        u("id", be64toh(ident->id));
        u("creatorid", be32toh(ident->creatorid));
        break;
    }
    case 4: {
        const struct upd_c *upd = (const struct upd_c *)at;
        zeros(upd->pad, sizeof upd->pad);
        u("id", be64toh(upd->id));
        peer("src", &upd->src);
        peer("dst", &upd->dst);
        u("creatorid", be32toh(upd->creatorid));
        u("expire", be32toh(upd->expire));
        u("timeout", upd->timeout);
        if (dialect == 6)
            u("state_flags", upd->state_flags);
        else
            zeros(&upd->state_flags, 1);
        break;
    }
    case 10: {
        const struct bus *bus = (const struct bus *)at;
        zeros(bus->pad, sizeof bus->pad);
        u("creatorid", be32toh(bus->creatorid));
        u("endtime", be32toh(bus->endtime));
        u("status", bus->status);
        break;
    }
    case 11: {
        const struct tdb *tdb = (const struct tdb *)at;
        zeros(tdb->pad, sizeof tdb->pad);
        u("spi", be32toh(tdb->spi));
        printf(" dst=");
        hex(tdb->dst, sizeof tdb->dst);
        u("rpl", be32toh(tdb->rpl));
        u("bytes", be64toh(tdb->bytes));
        u("sproto", tdb->sproto);
        u("updates", tdb->updates);
        break;
    }
    default:
        fail("an unknown message");
    }
    printf("\n");
}

static void packet(int dialect, const u8 *bytes, size_t length)
{
    const struct header *header = (const struct header *)bytes;
    if (length < sizeof *header || header->version != (dialect == 6 ? 6 : 5))
        fail("the header or its version");
    if ((size_t)be16toh(header->length) != length || header->pad != 0)
        fail("the length in the header");
    zeros(header->checksum, sizeof header->checksum);
    size_t at = sizeof *header;
    int is_ended = 0;
    while (at < length) {
        const struct subheader *sub = (const struct subheader *)(bytes + at);
        if (length - at < sizeof *sub)
            fail("the header of a group");
        at += sizeof *sub;
        size_t size = message_bytes(dialect, sub->action), count = be16toh(sub->count);
        if (sub->second != (dialect == 6 ? size / 4 : 0))
            fail("the second byte of a group");
        if (sub->action == 12) {
            is_ended = count == 1 && at == length;
            continue;
        }
        for (; count > 0; count--, at += size) {
            if (length - at < size)
                fail("a message that is cut");
            message(dialect, sub->action, bytes + at);
        }
    }
    if (is_ended != (dialect != 6))
        fail("the end of the packet");
    printf("end\n");
}

int main(void)
{
    static char line[1 << 17];
    static u8 bytes[1 << 16];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int dialect = atoi(line);
        char *digits = strchr(line, ' ');
        if (digits == NULL)
            fail("a line without a packet");
        size_t length = 0;
        unsigned byte;
        for (digits++; sscanf(digits, "%2x", &byte) == 1; digits += 2)
            bytes[length++] = (u8)byte;
        packet(dialect, bytes, length);
    }
    return 0;
}
