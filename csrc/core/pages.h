/* Asking the kernel for pages before they are needed: of shared memory, and of a mapped file. */
#ifndef PE_PAGES_H
#define PE_PAGES_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

/* One call reads no more than the device takes at once (8 MiB where this was measured), and the rest
 * of a larger range would come page by page: 40 MB cold at 8 to 37 MB/s, in slices at 620
 * (2026-11-30). */
#define PE_ASK_BYTES ((size_t)128 * 1024)

/* Start reading a page-aligned range without waiting for it. A hint: it cannot fail. */
static inline void pe_pages_ask(void *pages, size_t bytes) {
  for (size_t at = 0; at < bytes; at += PE_ASK_BYTES) {
    const size_t rest = bytes - at;
    (void)madvise((uint8_t *)pages + at, rest < PE_ASK_BYTES ? rest : PE_ASK_BYTES, MADV_WILLNEED);
  }
}

/* Give a range of shared memory its pages; returns 0 or an errno. A kernel that is interrupted takes
 * back what it has given so far (tmpfs of Linux up to 6.12 at least), so that an interval timer that is faster than
 * the call would keep it from ever ending: signals wait until it is through. EINTR is left to what
 * cannot be blocked, a debugger or the freezer. */
static inline int pe_pages_reserve(int fd, off_t offset, off_t bytes) {
  sigset_t all, before;
  int error;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  do
    error = posix_fallocate(fd, offset, bytes);
  while (error == EINTR);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return error;
}

#endif
