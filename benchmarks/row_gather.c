/* The limit of sampling: random rows of plain arrays, one memcpy a row and field. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MOST_ROWS = 4096 };

void gather_rows(const char *const *columns, char *const *outputs, const size_t *row_bytes,
                 size_t field_count, uint64_t capacity, size_t count, uint64_t *seed)
{
    uint64_t places[MOST_ROWS];
    uint64_t state = *seed;

    if (count > MOST_ROWS)
        count = MOST_ROWS;
    for (size_t row = 0; row < count; row++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        places[row] = state % capacity;
    }
    *seed = state;
    for (size_t field = 0; field < field_count; field++) {
        const size_t size = row_bytes[field];
        for (size_t row = 0; row < count; row++)
            memcpy(outputs[field] + row * size, columns[field] + places[row] * size, size);
    }
}
