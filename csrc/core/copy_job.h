/*
 * One copy of many ranges, which several threads work off together.
 *
 * The ranges, one behind the other, are cut into chunks of PE_CHUNK_BYTES; an atomic counter hands
 * them out. Whoever has time calls pe_copy_job_work, and whoever needs the result calls it too and
 * then pe_copy_job_wait, which is bounded by the chunks that others are in: so a job that was begun
 * in the background is never slower than a copy of one's own. Large pieces are written as is quickest
 * on the machine, past the caches where that is as good: it spares the learner's working set.
 *
 * The caller keeps sources and targets mapped until the job has ended (all chunks copied or
 * dropped). Any number of threads; nothing here is shared between processes.
 */
#ifndef PE_COPY_JOB_H
#define PE_COPY_JOB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PE_CHUNK_BYTES (UINT64_C(1) << 20)

struct pe_copy {
  uint8_t *target;
  const uint8_t *source;
  uint64_t end; /* bytes of this range and of all before it */
};

struct pe_copy_job {
  const struct pe_copy *copies; /* the caller's; `end` rises from one to the next */
  size_t count;
  uint64_t chunks;
  _Atomic uint64_t next;    /* the chunk to be handed out, or one past the last and more */
  _Atomic uint64_t settled; /* chunks copied or dropped */
  _Atomic bool is_stopped;  /* some were dropped */
  pthread_mutex_t lock;
  pthread_cond_t ended;
};

/* Nothing has to be undone: on Linux neither lock nor condition holds anything, and to destroy them
 * in a forked child would wait for threads that are not there. */
void pe_copy_job_init(struct pe_copy_job *job, const struct pe_copy *copies, size_t count);

/* Copy chunks until none is left to take. */
void pe_copy_job_work(struct pe_copy_job *job);

/* Drop the chunks that nobody has taken yet; those that are being copied are finished. */
void pe_copy_job_stop(struct pe_copy_job *job);

/* Wait until every chunk is copied or dropped; true where all were copied. */
bool pe_copy_job_wait(struct pe_copy_job *job);

#endif
