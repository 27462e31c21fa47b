/* Cleaning of batches for log compaction; see records/cleaning.py for the rules. */

#include "_clean.h"

enum { BEFORE_REST = 16 }; /* bytes of a record before its offset delta, at most */

int headrace_read_stored(const Given *given, BatchHeader *header)
{
    const uint8_t *batch = given->batch.buf;
    if (headrace_peek_batch(batch, given->batch.len, header) != FINE
        || header->crc != headrace_crc32c(0, batch + ATTRIBUTES_AT, (size_t)given->batch.len - ATTRIBUTES_AT))
        return -1;
    return header->base_offset < 0 || header->last_offset_delta < 0
               || header->base_offset >= INT64_MAX - header->last_offset_delta
        ? -1
        : 0;
}

int headrace_start_stored(const Given *given, const BatchHeader *header, Walk *walk)
{
    const uint8_t *start = given->section.obj ? given->section.buf : (const uint8_t *)given->batch.buf + HEADER_SIZE;
    Py_ssize_t size = given->section.obj ? given->section.len : given->batch.len - HEADER_SIZE;
    if ((header->attributes & BATCH_CODEC && !given->section.obj) || header->count < 0
        || header->count > size / SHORTEST_RECORD)
        return -1;
    *walk = (Walk){start, start + size, header->count, header->last_offset_delta, -1};
    return 0;
}

int headrace_is_readable(Walk walk)
{
    Record record;
    while (walk.remaining > 0)
        if (headrace_read_record(&walk, &record))
            return 0;
    return walk.at == walk.end;
}

Addition headrace_add_batch(OffsetMap *map, const Given *given)
{
    BatchHeader header;
    Walk walk;
    Record record;
    if (given->passed_over)
        return ADDED;
    if (map->used >= map->limit)
        return MAP_FULL;
    if (headrace_read_stored(given, &header) < 0)
        return NOT_READ;
    if (header.attributes & CONTROL)
        return ADDED;
    if (headrace_start_stored(given, &header, &walk) < 0 || !headrace_is_readable(walk))
        return NOT_READ;
    int was_empty = map->used == 0;
    while (walk.remaining > 0 && !headrace_read_record(&walk, &record))
        if (record.key_size >= 0
            && headrace_put_offset(map, record.key, record.key_size, header.base_offset + record.offset_delta) < 0)
            return was_empty ? ADDED : MAP_FULL;
    return ADDED;
}

/* What the records of a batch come to. */
typedef struct {
    int32_t kept;
    int32_t tombstones;
    int64_t max_timestamp; /* of the kept ones */
    int unseen;            /* the map lacks a tombstone, so older records of its key may still exist */
    int stamped;           /* the batch gets a horizon */
    int64_t horizon;       /* that it has, if `has_horizon` */
    int has_horizon;
} Outcome;

/* Decide about each record. Return 0, or -1 if one cannot be read. */
static int decide(Cleaning *cleaning, const BatchHeader *header, Walk walk, Outcome *outcome)
{
    uint8_t *survives = cleaning->decisions.data;
    Record record;
    int due = outcome->has_horizon && cleaning->now_ms >= outcome->horizon;
    for (; walk.remaining > 0; survives++) {
        if (headrace_read_record(&walk, &record))
            return -1;
        int tombstone = record.value_size < 0;
        int64_t offset = header->base_offset + record.offset_delta;
        int64_t last = record.key_size < 0 ? -1 : headrace_offset_of(cleaning->map, record.key, record.key_size);
        *survives = record.key_size >= 0 && !(tombstone && due) && last <= offset;
        if (!*survives)
            continue;
        outcome->unseen |= tombstone && last != offset;
        int64_t timestamp = headrace_add_wrapping(header->base_timestamp, record.timestamp_delta);
        if (!outcome->kept || timestamp > outcome->max_timestamp)
            outcome->max_timestamp = timestamp;
        outcome->kept++;
        outcome->tombstones += tombstone;
    }
    return walk.at == walk.end ? 0 : -1;
}

/* Copy the surviving records as they are, in runs. */
static int copy_records(Cleaning *cleaning, Walk walk)
{
    const uint8_t *survives = cleaning->decisions.data, *from = walk.at;
    Bytes *made = &cleaning->made;
    Record record;
    if (make_room(made, (size_t)(walk.end - walk.at)) < 0)
        return -1;
    for (; walk.remaining > 0; survives++) {
        const uint8_t *start = walk.at;
        if (headrace_read_record(&walk, &record))
            break;
        if (*survives)
            continue;
        add(made, from, (size_t)(start - from));
        from = walk.at;
    }
    add(made, from, (size_t)(walk.at - from));
    return 0;
}

/* Copy the surviving records with timestamps relative to the horizon. */
static int stamp_records(Cleaning *cleaning, int64_t base_timestamp, Walk walk)
{
    const uint8_t *survives = cleaning->decisions.data;
    Bytes *made = &cleaning->made;
    Record record;
    for (; walk.remaining > 0; survives++) {
        const uint8_t *attributes = headrace_skip_varint(walk.at);
        if (headrace_read_record(&walk, &record))
            break;
        if (!*survives)
            continue;
        const uint8_t *rest = headrace_skip_varint(attributes + 1);
        size_t left = (size_t)(record.end - rest);
        int64_t timestamp = headrace_add_wrapping(base_timestamp, record.timestamp_delta);
        int64_t delta = (int64_t)((uint64_t)timestamp - (uint64_t)cleaning->horizon_ms);
        if (make_room(made, left + BEFORE_REST) < 0)
            return -1;
        add_varint(made, (int64_t)(1 + varint_size(delta) + left));
        add(made, attributes, 1);
        add_varint(made, delta);
        add(made, rest, left);
    }
    return 0;
}

static Fate rewrite(Cleaning *cleaning, const Given *given, const BatchHeader *header, const Walk *walk,
                    const Outcome *outcome)
{
    Bytes *made = &cleaning->made;
    size_t start = made->used;
    if (make_room(made, HEADER_SIZE) < 0)
        return NO_MEMORY;
    add(made, given->batch.buf, HEADER_SIZE);
    if ((outcome->stamped ? stamp_records(cleaning, header->base_timestamp, *walk) : copy_records(cleaning, *walk)) < 0)
        return NO_MEMORY;
    size_t size = made->used - start;
    if (size > INT32_MAX) {
        made->used = start;
        return UNREADABLE;
    }
    uint8_t *batch = made->data + start;
    write_big_endian(batch + 8, size - BEFORE_LENGTH_ENDS, 4);
    if (outcome->stamped) {
        batch[ATTRIBUTES_AT + 1] |= HORIZON;
        write_big_endian(batch + 27, (uint64_t)cleaning->horizon_ms, 8);
    } else if (!outcome->has_horizon) {
        batch[ATTRIBUTES_AT + 1] &= (uint8_t)~HORIZON;
    }
    if (!(header->attributes & LOG_APPEND))
        write_big_endian(batch + 35, (uint64_t)outcome->max_timestamp, 8);
    write_big_endian(batch + 57, (uint64_t)outcome->kept, 4);
    write_big_endian(batch + CRC_AT, headrace_crc32c(0, batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT), 4);
    return CHANGED;
}

static void count(Cleaning *cleaning, const BatchHeader *header, const Outcome *outcome)
{
    cleaning->records_read += header->count;
    cleaning->records_kept += outcome->kept;
    cleaning->tombstones += outcome->tombstones;
    if (!outcome->tombstones || !(outcome->has_horizon || outcome->stamped))
        return;
    int64_t horizon = outcome->has_horizon ? outcome->horizon : cleaning->horizon_ms;
    if (!cleaning->has_horizon || horizon < cleaning->earliest)
        cleaning->earliest = horizon;
    cleaning->has_horizon = 1;
}

Fate headrace_clean_batch(Cleaning *cleaning, const Given *given)
{
    BatchHeader header;
    Walk walk;
    if (headrace_read_stored(given, &header) < 0)
        return UNREADABLE;
    if (header.attributes & CONTROL)
        return KEPT;
    if (given->passed_over) {
        cleaning->records_read += header.count > 0 ? header.count : 0;
        return REMOVED;
    }
    if (headrace_start_stored(given, &header, &walk) < 0)
        return UNREADABLE;
    cleaning->decisions.used = 0;
    if (make_room(&cleaning->decisions, (size_t)header.count + 1) < 0)
        return NO_MEMORY;
    Outcome outcome = {.horizon = header.base_timestamp,
                       .has_horizon = header.attributes & HORIZON && cleaning->clean_segment};
    if (decide(cleaning, &header, walk, &outcome) < 0)
        return UNREADABLE;
    outcome.stamped = outcome.tombstones && !outcome.unseen && !outcome.has_horizon;
    /* A client has set the attribute. Later passes would take it for that of a pass. */
    int forged = outcome.unseen && header.attributes & HORIZON && !outcome.has_horizon;
    Fate fate = REMOVED;
    if (outcome.kept)
        fate = outcome.kept == header.count && !outcome.stamped && !forged
            ? KEPT
            : rewrite(cleaning, given, &header, &walk, &outcome);
    if (fate != NO_MEMORY && fate != UNREADABLE)
        count(cleaning, &header, &outcome);
    return fate;
}
