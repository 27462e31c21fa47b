/* Scan the new commands of the file by their first bytes.
 *
 * The scan knows the leader's appends, the script `trim`, and commands that change no entry. After any other command
 * with the key of a log, that log is unknown. */

#define _GNU_SOURCE
#include "_aof.h"
#include <errno.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008
#endif

enum { HEAD = 384 };         /* first bytes of a command to read: usually all before a batch's records */
enum { LONGEST_KEY = 1024 }; /* of known logs; it fits into a window */
enum { LONGEST_LINE = 32 };  /* of a count or a length */
enum { BATCH_HEADER = 61 };
enum { LOOK_COST = 8 };      /* cost of a read, in parsed arguments */
static const int64_t LARGEST = (int64_t)1 << 40;

int64_t headrace_aof_signed(const char *at, int bytes)
{
    uint64_t value = 0;
    for (int index = 0; index < bytes; index++)
        value = value << 8 | (unsigned char)at[index];
    return bytes == 4 ? (int32_t)(uint32_t)value : (int64_t)value;
}

Py_ssize_t headrace_aof_readv_cached(int fd, const struct iovec *into, int count, int64_t position)
{
#ifdef SYS_preadv2
    /* The kernel expects the position in two registers. */
    unsigned long low = (unsigned long)position;
    unsigned long high = sizeof(long) == 8 ? 0 : (unsigned long)((uint64_t)position >> 32);
    long got;
    do
        got = syscall(SYS_preadv2, fd, into, count, low, high, RWF_NOWAIT);
    while (got < 0 && errno == EINTR);
    return (Py_ssize_t)got;
#else
    (void)fd, (void)into, (void)count, (void)position;
    errno = EOPNOTSUPP;
    return -1;
#endif
}

Py_ssize_t headrace_aof_read_cached(int fd, char *into, size_t size, int64_t position)
{
    struct iovec piece = {into, size};
    return headrace_aof_readv_cached(fd, &piece, 1, position);
}

/* Parsing: each function returns FOUND, or the reason for no result. AT_END: the file ends before. */

static int look(Index *self, int64_t at, Py_ssize_t size, const char **found)
{
    if (size > self->size - at)
        return AT_END;
    if (at < self->window_at || at + size > self->window_at + self->window_size) {
        self->cost += LOOK_COST;
        self->window_size = 0;
        Py_ssize_t got = headrace_aof_read_cached(self->fd, self->window, WINDOW, at);
        if (got < 0 && errno != EAGAIN)
            return UNKNOWN;
        if (got < size)
            return ABSENT;
        self->window_at = at;
        self->window_size = got;
    }
    *found = self->window + (at - self->window_at);
    return FOUND;
}

/* Parse a count or a length, and return its end. */
static int line(Index *self, int64_t at, char kind, int64_t *number, int64_t *behind)
{
    const char *text;
    if (at >= self->size)
        return AT_END;
    Py_ssize_t size = self->size - at < LONGEST_LINE ? (Py_ssize_t)(self->size - at) : LONGEST_LINE;
    int went = look(self, at, size, &text);
    if (went != FOUND)
        return went;
    if (text[0] != kind)
        return UNKNOWN;
    int64_t value = 0;
    for (Py_ssize_t index = 1; index < size; index++) {
        if (text[index] == '\r' && index > 1) {
            if (index + 1 == size)
                break;
            *number = value;
            *behind = at + index + 2;
            return text[index + 1] == '\n' ? FOUND : UNKNOWN;
        }
        if (text[index] < '0' || text[index] > '9')
            return UNKNOWN;
        value = value * 10 + (text[index] - '0');
        if (value > LARGEST)
            return UNKNOWN;
    }
    return size == LONGEST_LINE ? UNKNOWN : AT_END;
}

/* Parse an argument, and move past it. `*text` is set until the next `look`, for an argument of a key's size. */
static int argument(Index *self, int64_t *at, const char **text, int64_t *size)
{
    int64_t begins;
    const char *ends;
    int went = line(self, *at, '$', size, &begins);
    if (went != FOUND)
        return went;
    self->cost++;
    if (*size <= LONGEST_KEY) {
        went = look(self, begins, (Py_ssize_t)*size + 2, text);
        if (went != FOUND)
            return went;
        ends = *text + *size;
    } else {
        *text = NULL;
        went = look(self, begins + *size, 2, &ends);
        if (went != FOUND)
            return went;
    }
    if (ends[0] != '\r' || ends[1] != '\n')
        return UNKNOWN;
    *at = begins + *size + 2;
    return FOUND;
}

static int is_digits(const char *text, int64_t size)
{
    for (int64_t index = 0; index < size; index++)
        if (text[index] < '0' || text[index] > '9')
            return 0;
    return size > 0;
}

/* Parse a number without a sign up to `most`; -1 for anything else. */
static int64_t number_of(const char *text, int64_t size, int64_t most)
{
    int64_t value = 0;
    if (!is_digits(text, size))
        return -1;
    for (int64_t index = 0; index < size; index++) {
        if (value > (most - (text[index] - '0')) / 10)
            return -1;
        value = value * 10 + (text[index] - '0');
    }
    return value;
}

static int entry_id(const char *text, int64_t size, uint32_t *term, int64_t *next)
{
    const char *dash = memchr(text, '-', (size_t)size);
    if (!dash)
        return 0;
    int64_t first = number_of(text, dash - text, UINT32_MAX);
    int64_t second = number_of(dash + 1, text + size - dash - 1, INT64_MAX);
    *term = (uint32_t)first;
    *next = second;
    return first >= 0 && second >= 0;
}

/* Parse an argument with this text. */
static int word(Index *self, int64_t *at, const char *expected)
{
    const char *text;
    int64_t size;
    int went = argument(self, at, &text, &size);
    if (went != FOUND)
        return went;
    return text && size == (int64_t)strlen(expected) && !memcmp(text, expected, (size_t)size) ? FOUND : OTHER;
}

/* Parse an argument with an entry id. */
static int id_argument(Index *self, int64_t *at, uint32_t *term, int64_t *next)
{
    const char *text;
    int64_t size;
    int went = argument(self, at, &text, &size);
    if (went != FOUND)
        return went;
    return text && entry_id(text, size, term, next) ? FOUND : OTHER;
}

static int digits(Index *self, int64_t *at)
{
    const char *text;
    int64_t size;
    int went = argument(self, at, &text, &size);
    if (went != FOUND)
        return went;
    return text && is_digits(text, size) ? FOUND : OTHER;
}

static int key_argument(Index *self, int64_t *at, char *key, int64_t *key_size)
{
    const char *text;
    int went = argument(self, at, &text, key_size);
    if (went != FOUND)
        return went;
    if (!text)
        return OTHER;
    memcpy(key, text, (size_t)*key_size);
    return FOUND;
}

#define EXPECT(parsed)                                                                                                 \
    do {                                                                                                               \
        int went_ = (parsed);                                                                                          \
        if (went_ != FOUND)                                                                                            \
            return went_;                                                                                              \
    } while (0)

/* Parse an XADD after its name, as in `LeaderLog` and `StreamAppender._commands`. MORE: no memory. */
static int append(Index *self, int64_t *at)
{
    char key[LONGEST_KEY];
    int64_t key_size, size, behind;
    const char *header, *ends;
    Place place;
    EXPECT(key_argument(self, at, key, &key_size));
    EXPECT(word(self, at, "NOMKSTREAM"));
    EXPECT(id_argument(self, at, &place.term, &place.next));
    EXPECT(word(self, at, "b"));
    EXPECT(line(self, *at, '$', &size, &behind));
    if (size < BATCH_HEADER || size > INT32_MAX || self->database != 0)
        return OTHER;
    if (size + 2 > self->size - behind)
        return AT_END;
    EXPECT(look(self, behind, BATCH_HEADER, &header));
    int64_t base = headrace_aof_signed(header, 8), length = headrace_aof_signed(header + 8, 4);
    int64_t span = headrace_aof_signed(header + 23, 4) + 1;
    if (base < 0 || span < 1 || base > INT64_MAX - span || base + span != place.next || length + 12 != size)
        return OTHER;
    place.position = behind;
    place.size = (int32_t)size;
    EXPECT(look(self, behind + size, 2, &ends));
    if (ends[0] != '\r' || ends[1] != '\n')
        return UNKNOWN;
    *at = behind + size + 2;
    EXPECT(word(self, at, "t"));
    EXPECT(digits(self, at));
    EXPECT(word(self, at, "s"));
    EXPECT(digits(self, at));
    return headrace_aof_note(self, key, (Py_ssize_t)key_size, place, base) < 0 ? MORE : FOUND;
}

/* Parse an XTRIM after its name, as in the script `trim`. */
static int trim(Index *self, int64_t *at)
{
    char key[LONGEST_KEY];
    int64_t key_size, next;
    uint32_t term;
    EXPECT(key_argument(self, at, key, &key_size));
    EXPECT(word(self, at, "MINID"));
    EXPECT(word(self, at, "="));
    EXPECT(id_argument(self, at, &term, &next));
    Log *log = headrace_aof_log(self, key, (Py_ssize_t)key_size);
    if (log)
        headrace_aof_drop_before(self, log, headrace_aof_place_from(log, term, next));
    return FOUND;
}

static int selected(Index *self, int64_t *at)
{
    const char *text;
    int64_t size;
    EXPECT(argument(self, at, &text, &size));
    self->database = text && size == 1 && text[0] == '0' ? 0 : -1;
    return FOUND;
}

static int is_name(const char *name, int64_t size, const char *expected)
{
    return size == (int64_t)strlen(expected) && !strncasecmp(name, expected, (size_t)size);
}

/* Parse a command. MORE: no memory. */
static int command(Index *self)
{
    const char *name;
    int64_t count, size, at;
    /* In one window: a command's name and first arguments. */
    int64_t head = self->size - self->position < HEAD ? self->size - self->position : HEAD;
    EXPECT(look(self, self->position, (Py_ssize_t)head, &name));
    EXPECT(line(self, self->position, '*', &count, &at));
    if (count < 1)
        return UNKNOWN;
    EXPECT(argument(self, &at, &name, &size));
    if (!name)
        return UNKNOWN;
    int64_t behind = at;
    int went = OTHER, harmless = is_name(name, size, "XGROUP") || is_name(name, size, "XSETID");
    if (is_name(name, size, "FLUSHALL") || is_name(name, size, "FLUSHDB") || is_name(name, size, "SWAPDB"))
        headrace_aof_forget_all(self);
    else if (count == 10 && size == 4 && !memcmp(name, "XADD", 4))
        went = append(self, &at);
    else if (count == 5 && size == 5 && !memcmp(name, "XTRIM", 5))
        went = trim(self, &at);
    else if (count == 2 && is_name(name, size, "SELECT"))
        went = selected(self, &at);
    if (went == FOUND) {
        self->position = at;
    } else if (went == OTHER) {
        /* Skip its arguments one by one: their number has no limit. */
        self->position = behind;
        self->left = count - 1;
        self->heed = !harmless;
        went = FOUND;
    }
    return went;
}

static int pass_over(Index *self)
{
    const char *text;
    int64_t size, at = self->position;
    EXPECT(argument(self, &at, &text, &size));
    if (text && self->heed)
        headrace_aof_forget(self, text, (Py_ssize_t)size);
    self->position = at;
    self->left--;
    return FOUND;
}

static void begin(Index *self)
{
    headrace_aof_forget_all(self);
    self->position = self->left = 0;
    self->database = -1;
}

PyObject *headrace_aof_scan(Index *self, PyObject *args)
{
    int fd;
    long long work;
    off_t size;
    if (!PyArg_ParseTuple(args, "iL", &fd, &work))
        return NULL;
    /* Not fstat, which needs glibc 2.33. No read uses the file's position. */
    size = lseek(fd, 0, SEEK_END);
    if (size < 0)
        return PyLong_FromLong(UNKNOWN);
    self->fd = fd;
    self->size = size;
    self->window_size = 0;
    self->cost = 0;
    if (self->size < self->position)
        begin(self);
    int went = FOUND;
    while (went == FOUND) {
        if (self->position == self->size)
            went = AT_END;
        else if (self->cost >= work)
            went = MORE;
        else
            went = self->left ? pass_over(self) : command(self);
    }
    if (PyErr_Occurred())
        return NULL;
    return PyLong_FromLong(went);
}
