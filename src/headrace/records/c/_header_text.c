#include "_header_text.h"

#include "_base64.h"

/* Bytes of the UTF-8 character at `at`, as in Python's strict codec; 0 if it is invalid. */
static size_t character_size(const uint8_t *at, const uint8_t *end)
{
    uint8_t first = at[0];
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    size_t size = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if ((size_t)(end - at) < size)
        return 0;
    for (size_t index = 1; index < size; index++)
        if ((at[index] & 0xc0) != 0x80)
            return 0;
    /* Overlong, surrogates, and code points that are too large. */
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) || (first == 0xf0 && at[1] < 0x90)
        || (first == 0xf4 && at[1] > 0x8f))
        return 0;
    return size;
}

static int is_text(const uint8_t *at, size_t size)
{
    const uint8_t *end = at + size;
    while (at < end) {
        uint64_t eight;
        if (end - at >= (ptrdiff_t)sizeof eight) {
            memcpy(&eight, at, sizeof eight);
            if (!(eight & UINT64_C(0x8080808080808080))) {
                at += sizeof eight;
                continue;
            }
        }
        size_t step = character_size(at, end);
        if (!step)
            return 0;
        at += step;
    }
    return 1;
}

/* Characters that JSON must escape. */
static inline int is_special(uint8_t byte)
{
    return byte < 0x20 || byte == '"' || byte == '\\';
}

/* The first special byte, or the end. */
static const uint8_t *plain_until(const uint8_t *at, const uint8_t *end)
{
    while (at < end && !is_special(*at))
        at++;
    return at;
}

/* Writing */

static void add_escape(Bytes *out, uint8_t byte)
{
    static const char digits[] = "0123456789abcdef";
    static const char letters[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r',
                                   ['"'] = '"', ['\\'] = '\\'};
    if (letters[byte]) {
        add(out, (char[]){'\\', letters[byte]}, 2);
        return;
    }
    add(out, "\\u00", 4);
    add(out, (char[]){digits[byte >> 4], digits[byte & 15]}, 2);
}

static int write_string(Bytes *out, const uint8_t *at, size_t size)
{
    enum { LONGEST_ESCAPE = 6 };
    const uint8_t *end = at + size;
    if (make_room(out, size + 2) < 0)
        return -1;
    add(out, "\"", 1);
    for (;;) {
        const uint8_t *special = plain_until(at, end);
        size_t plain = (size_t)(special - at);
        if (make_room(out, plain + LONGEST_ESCAPE + 1) < 0)
            return -1;
        add(out, at, plain);
        if (special == end)
            break;
        add_escape(out, *special);
        at = special + 1;
    }
    add(out, "\"", 1);
    return 0;
}

static int write_text(Bytes *out, const uint8_t *data, size_t size)
{
    static const char begin[] = "{\"base64\":\"", stop[] = "\"}";
    if (is_text(data, size))
        return write_string(out, data, size);
    if (make_room(out, base64_size(size) + sizeof begin + sizeof stop) < 0)
        return -1;
    add(out, begin, sizeof begin - 1);
    write_base64((char *)out->data + out->used, data, size);
    out->used += base64_size(size);
    add(out, stop, sizeof stop - 1);
    return 0;
}

static int add_word(Bytes *out, const char *word)
{
    size_t size = strlen(word);
    if (make_room(out, size) < 0)
        return -1;
    add(out, word, size);
    return 0;
}

int headrace_write_header_text(Bytes *out, const Record *record)
{
    const uint8_t *at = record->headers;
    for (int32_t index = 0; index < record->header_count; index++) {
        Header header = {0, 0, NULL, NULL};
        at = headrace_read_header(at, record, &header);
        if (add_word(out, index ? ",[" : "[[") < 0 || write_text(out, header.key, (size_t)header.key_size) < 0
            || add_word(out, ",") < 0
            || (header.value_size < 0 ? add_word(out, "null")
                                      : write_text(out, header.value, (size_t)header.value_size))
                   < 0
            || add_word(out, "]") < 0)
            return -1;
    }
    return add_word(out, record->header_count ? "]" : "[]");
}

/* Reading. Python reads any text that this server would not write, except for blanks. */

enum { NO_MEMORY = -1, UNREAD = 0, READ = 1 };

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Text;

static void skip_blanks(Text *text)
{
    while (text->at < text->end
           && (*text->at == ' ' || *text->at == '\t' || *text->at == '\n' || *text->at == '\r'))
        text->at++;
}

/* Skip blanks and this word, and return whether it was found. */
static int takes_word(Text *text, const char *word)
{
    size_t size = strlen(word);
    skip_blanks(text);
    if ((size_t)(text->end - text->at) < size || memcmp(text->at, word, size) != 0)
        return 0;
    text->at += size;
    return 1;
}

static int takes(Text *text, char byte)
{
    skip_blanks(text);
    if (text->at == text->end || *text->at != (uint8_t)byte)
        return 0;
    text->at++;
    return 1;
}

static int hex_digit(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return byte - '0';
    byte |= 0x20;
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : -1;
}

/* The four digits of an escape; -1 when they are none. */
static int32_t read_unit(Text *text)
{
    if (text->end - text->at < 4)
        return -1;
    int32_t unit = 0;
    for (int index = 0; index < 4; index++) {
        int digit = hex_digit(text->at[index]);
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    text->at += 4;
    return unit;
}

static void add_character(Bytes *into, int32_t character)
{
    uint8_t out[4];
    size_t size = character < 0x80 ? 1 : character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    for (size_t index = size - 1; index; index--, character >>= 6)
        out[index] = (uint8_t)(0x80 | (character & 0x3f));
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(marks[size] | character);
    add(into, out, size);
}

/* The character of an escape. Half a surrogate pair is invalid. */
static int read_escape(Text *text, Bytes *into)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (text->at == text->end)
        return UNREAD;
    uint8_t letter = *text->at++;
    const char *found = letter ? strchr(from, letter) : NULL;
    if (found) {
        add(into, to + (found - from), 1);
        return READ;
    }
    if (letter != 'u')
        return UNREAD;
    int32_t unit = read_unit(text);
    if (unit >= 0xd800 && unit < 0xdc00) {
        if (text->end - text->at < 2 || text->at[0] != '\\' || text->at[1] != 'u')
            return UNREAD;
        text->at += 2;
        int32_t low = read_unit(text);
        if (low < 0xdc00 || low > 0xdfff)
            return UNREAD;
        unit = 0x10000 + ((unit - 0xd800) << 10 | (low - 0xdc00));
    } else if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff))
        return UNREAD;
    add_character(into, unit);
    return READ;
}

/* The rest of a string after its first quotation mark, into `into`. */
static int read_string(Text *text, Bytes *into)
{
    enum { LONGEST_CHARACTER = 4 };
    into->used = 0;
    for (;;) {
        const uint8_t *special = plain_until(text->at, text->end);
        size_t plain = (size_t)(special - text->at);
        if (special == text->end || !is_text(text->at, plain))
            return UNREAD;
        if (make_room(into, plain + LONGEST_CHARACTER) < 0)
            return NO_MEMORY;
        add(into, text->at, plain);
        text->at = special + 1;
        if (*special == '"')
            return READ;
        if (*special != '\\' || read_escape(text, into) != READ)
            return UNREAD;
    }
}

/* Decode base64 in place; `spare` is overwritten. */
static int decode(Bytes *part, Bytes *spare)
{
    size_t characters = part->used;
    if (characters % 4)
        return UNREAD;
    size_t size = characters / 4 * 3;
    for (size_t pads = 0; pads < 2 && size && part->data[characters - 1 - pads] == '='; pads++)
        size--;
    spare->used = 0;
    if (make_room(spare, size + BASE64_SLACK) < 0)
        return NO_MEMORY;
    const Encoded encoded = {part->data, characters, size};
    if (headrace_decode_base64(&encoded, spare->data) < 0)
        return UNREAD;
    spare->used = size;
    const Bytes decoded = *spare;
    *spare = *part;
    *part = decoded;
    return READ;
}

/* A name or value that is not null, into `part`. */
static int read_text(Text *text, Bytes *part, Bytes *spare)
{
    if (takes(text, '"'))
        return read_string(text, part);
    if (!takes(text, '{') || !takes_word(text, "\"base64\"") || !takes(text, ':') || !takes(text, '"'))
        return UNREAD;
    int found = read_string(text, part);
    if (found != READ)
        return found;
    return takes(text, '}') ? decode(part, spare) : UNREAD;
}

static int put_part(Bytes *section, const Bytes *part)
{
    if (make_room(section, part->used + LONGEST_VARINT) < 0)
        return NO_MEMORY;
    add_varint(section, (int64_t)part->used);
    if (part->used)
        add(section, part->data, part->used);
    return READ;
}

static int read_pair(Text *text, Bytes *section, Bytes *part, Bytes *spare)
{
    if (!takes(text, '['))
        return UNREAD;
    int found = read_text(text, part, spare);
    if (found != READ || (found = put_part(section, part)) != READ)
        return found;
    if (!takes(text, ','))
        return UNREAD;
    if (takes_word(text, "null")) {
        if (make_room(section, LONGEST_VARINT) < 0)
            return NO_MEMORY;
        add_varint(section, -1);
    } else if ((found = read_text(text, part, spare)) != READ || (found = put_part(section, part)) != READ)
        return found;
    return takes(text, ']') ? READ : UNREAD;
}

static int read_pairs(Text *text, Bytes *section, Bytes *part, Bytes *spare, int64_t *count)
{
    if (!takes(text, '['))
        return UNREAD;
    if (!takes(text, ']')) {
        do {
            int found = read_pair(text, section, part, spare);
            if (found != READ)
                return found;
            ++*count;
        } while (takes(text, ','));
        if (!takes(text, ']'))
            return UNREAD;
    }
    skip_blanks(text);
    return text->at == text->end ? READ : UNREAD;
}

int headrace_read_header_text(const uint8_t *data, size_t size, Bytes *section)
{
    Text text = {data, data + size};
    Bytes part = {0}, spare = {0};
    int64_t count = 0;
    section->used = 0;
    int found = make_room(section, LONGEST_VARINT) < 0 ? NO_MEMORY : READ;
    if (found == READ) {
        section->used = LONGEST_VARINT; /* the count is known at the end */
        found = read_pairs(&text, section, &part, &spare, &count);
    }
    if (found == READ) {
        size_t room = LONGEST_VARINT - varint_size(count);
        write_varint(section->data + room, count);
        section->used -= room;
        memmove(section->data, section->data + room, section->used);
    }
    let_go(&part);
    let_go(&spare);
    return found;
}
