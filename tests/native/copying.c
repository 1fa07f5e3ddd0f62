/*
 * One copy job worked off by several threads, some of which stop it; then the sources change. What a
 * sanitizer sees of it is what an optimizer's step relies on: after pe_copy_job_wait nobody reads a
 * source or writes a target, and whoever waited sees every byte.
 */
#include <string.h>
#include <unistd.h>

#include "copy_job.h"
#include "world.h"

#define RANGES 2000u
#define THREADS 3

struct round {
  struct pe_copy_job job;
  struct pe_copy copies[RANGES];
  uint8_t *source;
  uint8_t *target;
  uint64_t bytes;
  bool stops;
};

static void *share(void *context) {
  struct round *round = context;
  pe_copy_job_work(&round->job);
  return NULL;
}

/* Ranges below what is streamed, which a sanitizer follows byte by byte, and a few above. */
static void plan(struct round *round, uint64_t *random) {
  round->bytes = 0;
  for (size_t i = 0; i < RANGES; i++) {
    const uint64_t size = i % 100 == 0 ? 4096 + world_below(random, 100000) : world_below(random, 4000);
    round->bytes += size;
    round->copies[i].end = round->bytes;
  }
  round->source = malloc(round->bytes);
  round->target = calloc(1, round->bytes);
  CHECK(round->source != NULL && round->target != NULL, "memory");
  for (uint64_t at = 0; at < round->bytes; at++) round->source[at] = (uint8_t)world_random(random);
  for (size_t i = 0; i < RANGES; i++) {
    const uint64_t begin = i == 0 ? 0 : round->copies[i - 1].end;
    round->copies[i].source = round->source + begin;
    round->copies[i].target = round->target + begin;
  }
  pe_copy_job_init(&round->job, round->copies, RANGES);
}

int main(int argc, char **argv) {
  const uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20;
  uint64_t random = 3, whole = 0, stopped = 0;
  alarm(600);
  for (uint64_t number = 0; number < rounds; number++) {
    struct round round = {.stops = number % 2 == 1};
    pthread_t threads[THREADS];
    plan(&round, &random);
    if (number % 4 == 3) pe_copy_job_stop(&round.job);
    for (size_t i = 0; i < THREADS; i++)
      CHECK(pthread_create(&threads[i], NULL, share, &round) == 0, "a thread");
    if (round.stops) pe_copy_job_stop(&round.job);
    pe_copy_job_work(&round.job);
    const bool is_whole = pe_copy_job_wait(&round.job);
    CHECK(is_whole || round.stops, "it stopped by itself");
    CHECK(!is_whole || memcmp(round.target, round.source, round.bytes) == 0, "bytes are missing");
    memset(round.source, 0, round.bytes); /* the step */
    memset(round.target, 1, round.bytes); /* the next owner of the slot */
    for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (uint64_t at = 0; at < round.bytes; at++) CHECK(round.target[at] == 1, "a late write");
    whole += is_whole;
    stopped += !is_whole;
    free(round.source);
    free(round.target);
  }
  printf("jobs: %lu whole, %lu stopped\n", (unsigned long)whole, (unsigned long)stopped);
  CHECK(whole != 0 && stopped != 0, "one kind of end was never met");
  return 0;
}
