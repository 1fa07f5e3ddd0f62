/* Stacks of frames: stored once as they are added, rebuilt as they are read. */
#include <stdlib.h>
#include <string.h>

#include "append.h"
#include "priorities.h"

static uint64_t frame_bytes(const struct pe_ring *ring, const struct pe_stack *stack) {
  return ring->fields[stack->field].row_bytes;
}

bool pe_spans_open(struct pe_ring *ring) {
  const uint64_t lanes = ring->control->lanes;
  ring->newest_bytes = 0;
  ring->reach = 0;
  if (ring->stack_count == 0) return true;
  for (uint32_t p = 0; p < ring->stack_count; p++) {
    const struct pe_stack *stack = &ring->stacks[p];
    if (stack->depth > ring->reach) ring->reach = stack->depth;
    ring->newest_bytes += stack->depth * frame_bytes(ring, stack);
  }
  ring->marks = calloc((size_t)(lanes * ring->control->rows_per_lane), 1);
  ring->newest = calloc((size_t)lanes, (size_t)ring->newest_bytes);
  ring->has_newest = calloc((size_t)lanes, sizeof *ring->has_newest);
  ring->openings = calloc((size_t)lanes, sizeof *ring->openings);
  return ring->marks != NULL && ring->newest != NULL && ring->has_newest != NULL &&
         ring->openings != NULL;
}

void pe_spans_free(struct pe_ring *ring) {
  free(ring->marks);
  free(ring->newest);
  free(ring->has_newest);
  free(ring->openings);
  ring->marks = NULL;
  ring->newest = NULL;
  ring->has_newest = NULL;
  ring->openings = NULL;
}

static const uint8_t *value_at(const struct pe_source *source, uint64_t step, uint64_t lane) {
  return source->data + step * source->step_bytes + lane * source->lane_bytes;
}

/* The fewest opening rows from which a stack is rebuilt: those before them repeat the oldest. */
static uint32_t count_openings(const uint8_t *stack, uint32_t depth, uint64_t bytes) {
  uint32_t same = 1;
  while (same < depth && memcmp(stack, stack + same * bytes, bytes) == 0) same++;
  return depth - same + 1;
}

/* How many opening rows a lane's row needs in front of it: none where it continues the last one. */
static uint32_t plan_openings(const struct pe_ring *ring, uint64_t lane,
                              const struct pe_stack_source *stacks, uint64_t step,
                              uint64_t source_lane) {
  const uint8_t *newest = ring->newest + lane * ring->newest_bytes;
  bool continues = ring->has_newest[lane] &&
                   !atomic_load_explicit(&pe_control_lane(ring->control, lane)->break_pending,
                                         memory_order_relaxed);
  for (uint32_t p = 0; continues && p < ring->stack_count; p++) {
    const uint64_t bytes = ring->stacks[p].depth * frame_bytes(ring, &ring->stacks[p]);
    continues = memcmp(newest, value_at(&stacks[p].obs, step, source_lane), bytes) == 0;
    newest += bytes;
  }
  uint32_t most = 0;
  for (uint32_t p = 0; !continues && p < ring->stack_count; p++) {
    const struct pe_stack *stack = &ring->stacks[p];
    const uint32_t count = count_openings(value_at(&stacks[p].obs, step, source_lane), stack->depth,
                                          frame_bytes(ring, stack));
    if (count > most) most = count;
  }
  return most;
}

/* Append a lane's opening rows: frames of obs, all else zero. */
static void append_openings(struct pe_ring *ring, uint64_t lane,
                            const struct pe_stack_source *stacks, uint64_t step,
                            uint64_t source_lane) {
  const uint32_t count = ring->openings[lane];
  struct pe_lane *shared = pe_control_lane(ring->control, lane);
  for (uint32_t i = 0; i < count; i++) {
    const uint64_t id = pe_lane_total(ring, lane);
    const uint64_t row = id & (ring->control->segment_rows - 1);
    uint8_t *image = pe_append_image(ring, lane);
    for (uint32_t f = 0; f + 1 < ring->field_count; f++) {
      const struct pe_field_record *field = &ring->fields[f];
      memset(image + field->offset + row * field->row_bytes, 0, field->row_bytes);
    }
    for (uint32_t p = 0; p < ring->stack_count; p++) {
      const struct pe_stack *stack = &ring->stacks[p];
      const uint64_t bytes = frame_bytes(ring, stack);
      /* A pair that needs fewer rows than another has its oldest frame in the first of them. */
      const uint32_t frame = stack->depth + i > count ? stack->depth + i - count : 0;
      memcpy(image + ring->fields[stack->field].offset + row * bytes,
             value_at(&stacks[p].obs, step, source_lane) + frame * bytes, bytes);
    }
    for (uint32_t f = 0; f < ring->mutable_count; f++) {
      const struct pe_mutable_field *field = &ring->mutables[f];
      memset(ring->base + field->offset + pe_row_position(ring, lane, id) * field->row_bytes, 0,
             field->row_bytes);
    }
    image[ring->fields[ring->field_count - 1].offset + row] =
        PE_MARK_OPENING | (i == 0 ? PE_MARK_START : 0);
    atomic_store_explicit(&shared->break_pending, 0, memory_order_relaxed);
    pe_append_publish(ring, lane, 1);
  }
}

static void keep_newest(struct pe_ring *ring, uint64_t lane, const struct pe_stack_source *stacks,
                        uint64_t step, uint64_t source_lane) {
  uint8_t *to = ring->newest + lane * ring->newest_bytes;
  for (uint32_t p = 0; p < ring->stack_count; p++) {
    const uint64_t bytes = ring->stacks[p].depth * frame_bytes(ring, &ring->stacks[p]);
    memcpy(to, value_at(&stacks[p].next_obs, step, source_lane), bytes);
    to += bytes;
  }
  ring->has_newest[lane] = true;
}

/* Whether next_obs is obs moved on by one frame, in every row that is to be added. */
static enum pe_status check_steps(const struct pe_ring *ring, uint64_t lane_count, uint64_t first,
                                  uint64_t end, const struct pe_stack_source *stacks,
                                  const uint8_t *mask, struct pe_fault *fault) {
  for (uint64_t i = first * lane_count; i < end * lane_count; i++) {
    if (mask != NULL && !mask[i]) continue;
    for (uint32_t p = 0; p < ring->stack_count; p++) {
      const uint64_t bytes = frame_bytes(ring, &ring->stacks[p]);
      const uint8_t *obs = value_at(&stacks[p].obs, i / lane_count, i % lane_count);
      const uint8_t *next = value_at(&stacks[p].next_obs, i / lane_count, i % lane_count);
      if (memcmp(obs + bytes, next, bytes * (ring->stacks[p].depth - 1)) != 0) {
        *fault = (struct pe_fault){.row = (int64_t)i, .block = p};
        return PE_BROKEN_STACK;
      }
    }
  }
  return PE_OK;
}

enum pe_status pe_ring_append_stacks(struct pe_ring *ring, uint64_t lane_begin, uint64_t lane_count,
                                     uint64_t steps, const struct pe_source *sources,
                                     const struct pe_source *mutables,
                                     const struct pe_stack_source *stacks, const uint8_t *mask,
                                     uint64_t *done, struct pe_fault *fault) {
  const struct pe_batch batch = {lane_begin, lane_count, sources, mutables, mask};
  enum pe_status status = check_steps(ring, lane_count, *done, steps, stacks, mask, fault);
  if (status == PE_OK && ring->priorities != NULL && *done == 0)
    status = pe_priorities_check_rows(ring, lane_count, steps, mutables, mask, fault);
  for (; status == PE_OK && *done < steps; ++*done) {
    const uint8_t *step_mask = mask == NULL ? NULL : mask + *done * lane_count;
    for (uint64_t l = 0; l < lane_count; l++)
      if (step_mask == NULL || step_mask[l])
        ring->openings[lane_begin + l] = plan_openings(ring, lane_begin + l, stacks, *done, l);
    status = pe_append_open(ring, &batch, *done, ring->openings, fault);
    if (status != PE_OK) break;
    for (uint64_t l = 0; l < lane_count; l++) {
      if (step_mask != NULL && !step_mask[l]) continue;
      append_openings(ring, lane_begin + l, stacks, *done, l);
      pe_append_run(ring, &batch, l, *done, 1);
      keep_newest(ring, lane_begin + l, stacks, *done, l);
    }
  }
  return status;
}

struct frames {
  const struct pe_place *places; /* depth + 1 a row: the frames of both stacks, oldest first */
  uint64_t count;
  uint64_t offset;
  uint64_t bytes;
  uint32_t depth;
  uint8_t *obs;
  uint8_t *next_obs;
};

static void copy_stack(const struct frames *frames, const struct pe_place *places, uint8_t *to) {
  const struct pe_place *last = &places[frames->depth - 1];
  if (last->image == places->image && last->row == places->row + frames->depth - 1) {
    memcpy(to, places->image + frames->offset + places->row * frames->bytes,
           frames->depth * frames->bytes);
    return;
  }
  for (uint32_t k = 0; k < frames->depth; k++, to += frames->bytes)
    memcpy(to, places[k].image + frames->offset + places[k].row * frames->bytes, frames->bytes);
}

/* Under the guard of mapped files: no more than copying. */
static void copy_stacks(void *context) {
  const struct frames *frames = context;
  const uint64_t stack_bytes = frames->depth * frames->bytes;
  for (uint64_t i = 0; i < frames->count; i++) {
    const struct pe_place *places = frames->places + i * (frames->depth + 1);
    if (frames->obs != NULL) copy_stack(frames, places, frames->obs + i * stack_bytes);
    if (frames->next_obs != NULL)
      copy_stack(frames, places + 1, frames->next_obs + i * stack_bytes);
  }
}

/* The oldest row whose frame the stacks at `row` have. */
static uint64_t oldest_row(const struct pe_ring *ring, struct pe_spot spot, uint32_t depth) {
  uint64_t row = spot.row;
  for (uint32_t k = 0; k < depth; k++)
    if (pe_mark_of(ring, spot.lane, --row) & PE_MARK_START) break;
  return row;
}

enum pe_status pe_stacks_gather(struct pe_ring *ring, const struct pe_stack *stack,
                                const struct pe_spot *spots, uint64_t count, uint8_t *obs,
                                uint8_t *next_obs, struct pe_fault *fault) {
  const uint32_t depth = stack->depth;
  enum pe_status status = PE_OUT_OF_MEMORY;
  struct pe_place *places = malloc((size_t)count * (depth + 1) * sizeof *places);
  uint8_t **wanted = calloc(ring->field_count, sizeof *wanted);
  if (places == NULL || wanted == NULL) goto done;
  for (uint64_t i = 0; i < count; i++) {
    const uint64_t oldest = oldest_row(ring, spots[i], depth);
    for (uint32_t k = 0; k <= depth; k++) {
      uint64_t row = spots[i].row + k < oldest + depth ? oldest : spots[i].row + k - depth;
      if (next_obs == NULL && k == depth) row = oldest; /* not there yet, and not asked for */
      places[i * (depth + 1) + k] = pe_place_of(ring, spots[i].lane, row);
    }
  }
  struct frames frames = {places, count, ring->fields[stack->field].offset,
                          frame_bytes(ring, stack), depth, obs, next_obs};
  status = PE_OK;
  if (ring->file_count == 0) {
    copy_stacks(&frames);
    goto done;
  }
  wanted[stack->field] = obs != NULL ? obs : next_obs; /* nothing is written by the verifying */
  status = pe_mapped_verify_rows(ring, places, count * (depth + 1), wanted, fault);
  if (status == PE_OK) status = pe_mapped_read(ring, copy_stacks, &frames, fault);
done:
  free(places);
  free(wanted);
  return status;
}

enum pe_status pe_ring_gather_spans(struct pe_ring *ring, const int64_t *refs, uint64_t count,
                                    const struct pe_gather_targets *targets, struct pe_fault *fault) {
  const uint64_t lanes = ring->control->lanes;
  enum pe_status status =
      pe_ring_gather(ring, refs, count, targets->fields, targets->mutables, fault);
  if (status != PE_OK || ring->stack_count == 0) return status;
  struct pe_spot *spots = malloc((size_t)(count + 1) * sizeof *spots);
  if (spots == NULL) return PE_OUT_OF_MEMORY;
  for (uint64_t i = 0; i < count; i++)
    spots[i] = (struct pe_spot){(uint64_t)refs[i] % lanes, (uint64_t)refs[i] / lanes};
  for (uint32_t p = 0; status == PE_OK && p < ring->stack_count; p++) {
    uint8_t *obs = targets->stacks[2 * p], *next_obs = targets->stacks[2 * p + 1];
    if (obs != NULL || next_obs != NULL)
      status = pe_stacks_gather(ring, &ring->stacks[p], spots, count, obs, next_obs, fault);
  }
  free(spots);
  return status;
}
