/*
 * Reading mapped files without dying of SIGBUS.
 *
 * A page of a mapped file that cannot be had (a bad sector, a file cut short) is a SIGBUS of the
 * thread that touches it. A guard runs a function; where that touches such a page of memory which
 * the guard knows as its own, the handler jumps out of it. Every other SIGBUS goes to whoever had
 * the signal before: faulthandler, a program's own handler, the default action.
 *
 * The handler is set when the first guard runs, and put in front again when a later one finds
 * another in its place. It reads thread-local and static memory alone.
 */
#ifndef PE_GUARD_H
#define PE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

struct pe_guard {
  /* What to run. It may be left at any read of a mapped file: it takes no lock, allocates nothing,
   * calls no Python. */
  void (*body)(void *context);
  void *context;
  /* Whether an address is in a mapped file whose reads this guard covers; async-signal-safe. */
  bool (*owns)(const void *owner, const uint8_t *address);
  const void *owner;
};

/* Run guard->body(guard->context); false where it was left, with the address that had no page. */
bool pe_guard_run(const struct pe_guard *guard, const uint8_t **address);

#endif
