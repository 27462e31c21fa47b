/* Base64 (RFC 4648, section 4): with padding, in one line. */

#ifndef HEADRACE_RECORDS_BASE64_H
#define HEADRACE_RECORDS_BASE64_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { BASE64_SLACK = 16 };

typedef struct {
    const uint8_t *text; /* base64, or NULL */
    size_t characters;
    size_t size; /* decoded */
} Encoded;

/* Call it once, before other functions. */
void headrace_base64_prepare(void);
/* Decode into `to`, which needs BASE64_SLACK extra bytes. Return 0, or -1 for invalid characters or remaining bits.
 * `characters` is a multiple of four, and `size` is the decoded size. */
int headrace_decode_base64(const Encoded *encoded, uint8_t *to);

/* Two characters for each 12 bits: three bytes are two look-ups. */
extern char headrace_base64_pairs[4096][2];

static inline size_t base64_size(size_t size)
{
    return (size + 2) / 3 * 4;
}

/* Writes base64_size(size) characters. */
static inline char *write_base64(char *to, const uint8_t *data, size_t size)
{
    for (; size >= 3; size -= 3, data += 3, to += 4) {
        uint32_t bits = (uint32_t)data[0] << 16 | (uint32_t)data[1] << 8 | data[2];
        memcpy(to, headrace_base64_pairs[bits >> 12], 2);
        memcpy(to + 2, headrace_base64_pairs[bits & 4095], 2);
    }
    if (size) {
        uint32_t bits = (uint32_t)data[0] << 16 | (size == 2 ? (uint32_t)data[1] << 8 : 0);
        memcpy(to, headrace_base64_pairs[bits >> 12], 2);
        memcpy(to + 2, headrace_base64_pairs[bits & 4095], 2);
        memset(to + 1 + size, '=', 3 - size);
        to += 4;
    }
    return to;
}

#endif
