/* Base64 (RFC 4648, section 4) decoded: with padding, in one line. */

#ifndef HEADRACE_RECORDS_BASE64_H
#define HEADRACE_RECORDS_BASE64_H

#include <stddef.h>
#include <stdint.h>

enum { BASE64_SLACK = 16 };

typedef struct {
    const uint8_t *text; /* base64; NULL when there is none */
    size_t characters;
    size_t size; /* decoded */
} Encoded;

/* Once, before anything is decoded. */
void headrace_base64_prepare(void);
/* Decode into `to`, which has BASE64_SLACK bytes more than needed; 0, or -1 for characters that are none, or bits left
 * over. `characters` is a multiple of four, and `size` what they give. */
int headrace_decode_base64(const Encoded *encoded, uint8_t *to);

#endif
