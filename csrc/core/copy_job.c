#include "copy_job.h"

#include "streaming.h"

void pe_copy_job_init(struct pe_copy_job *job, const struct pe_copy *copies, size_t count) {
  const uint64_t bytes = count == 0 ? 0 : copies[count - 1].end;
  job->copies = copies;
  job->count = count;
  job->chunks = bytes / PE_CHUNK_BYTES + (bytes % PE_CHUNK_BYTES != 0);
  atomic_init(&job->next, 0);
  atomic_init(&job->settled, 0);
  atomic_init(&job->is_stopped, false);
  pthread_mutex_init(&job->lock, NULL);
  pthread_cond_init(&job->ended, NULL);
}

/* The first range that reaches beyond byte `at`. */
static size_t find_copy(const struct pe_copy_job *job, uint64_t at) {
  size_t low = 0, high = job->count - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (job->copies[middle].end > at)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

static void copy_chunk(const struct pe_copy_job *job, uint64_t chunk) {
  const uint64_t total = job->copies[job->count - 1].end;
  uint64_t at = chunk * PE_CHUNK_BYTES;
  const uint64_t end = total - at < PE_CHUNK_BYTES ? total : at + PE_CHUNK_BYTES;
  for (size_t i = find_copy(job, at); at < end; i++) {
    const struct pe_copy *copy = &job->copies[i];
    const uint64_t begin = i == 0 ? 0 : job->copies[i - 1].end;
    const uint64_t until = copy->end < end ? copy->end : end;
    pe_copy_large(copy->target + (at - begin), copy->source + (at - begin), (size_t)(until - at));
    at = until;
  }
  pe_order_stores();
}

static void settle(struct pe_copy_job *job, uint64_t chunks) {
  const uint64_t before = atomic_fetch_add_explicit(&job->settled, chunks, memory_order_acq_rel);
  if (before + chunks != job->chunks) return;
  pthread_mutex_lock(&job->lock);
  pthread_cond_broadcast(&job->ended);
  pthread_mutex_unlock(&job->lock);
}

void pe_copy_job_work(struct pe_copy_job *job) {
  for (;;) {
    const uint64_t chunk = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);
    if (chunk >= job->chunks) return;
    copy_chunk(job, chunk);
    settle(job, 1);
  }
}

void pe_copy_job_stop(struct pe_copy_job *job) {
  const uint64_t next = atomic_exchange_explicit(&job->next, job->chunks, memory_order_relaxed);
  if (next >= job->chunks) return;
  atomic_store_explicit(&job->is_stopped, true, memory_order_relaxed);
  settle(job, job->chunks - next);
}

bool pe_copy_job_wait(struct pe_copy_job *job) {
  if (atomic_load_explicit(&job->settled, memory_order_acquire) != job->chunks) {
    pthread_mutex_lock(&job->lock);
    while (atomic_load_explicit(&job->settled, memory_order_acquire) != job->chunks)
      pthread_cond_wait(&job->ended, &job->lock);
    pthread_mutex_unlock(&job->lock);
  }
  return !atomic_load_explicit(&job->is_stopped, memory_order_relaxed);
}
