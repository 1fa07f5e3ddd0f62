#include "guard.h"

#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define MAX_FORMER 6
#define CHAINS 8
/* So often may one address fault again in a row before the next former handler is asked: one that
 * returns without a remedy, as faulthandler does when it was switched off, would do so for ever. */
#define PATIENCE 16

/* Those who had the signal before, the last one first. Never changed once published. */
struct chain {
  unsigned count;
  struct sigaction former[MAX_FORMER];
};

struct armed {
  const struct pe_guard *guard;
  const uint8_t *address;
  sigjmp_buf out;
};

/* A handler may not allocate, which the first look at a thread's dynamic TLS can do. */
#define PE_STATIC_TLS _Thread_local __attribute__((tls_model("initial-exec")))

static PE_STATIC_TLS struct armed *armed;
static PE_STATIC_TLS unsigned depth; /* of former handlers that this thread is in */
static PE_STATIC_TLS const void *stubborn;
static PE_STATIC_TLS unsigned repeats;

/* A chain is used again after CHAINS changes of the handler: no call of one lasts that long. */
static struct chain chains[CHAINS];
static _Atomic(const struct chain *) present;
static _Atomic int changing; /* pid of the process that sets the handler */
static unsigned next_chain;

static void on_sigbus(int number, siginfo_t *info, void *machine);

static void end_by_default(int number, const siginfo_t *info) {
  struct sigaction fatal;
  memset(&fatal, 0, sizeof fatal);
  fatal.sa_handler = SIG_DFL;
  sigaction(number, &fatal, NULL);
  /* A fault comes again by itself, at the instruction that a debugger wants to see. */
  if (info->si_code <= 0 || info->si_code == BUS_MCEERR_AO) raise(number);
}

static void call_former(const struct sigaction *former, int number, siginfo_t *info,
                        void *machine) {
  sigset_t blocked, before;
  blocked = former->sa_mask;
  if (!(former->sa_flags & SA_NODEFER)) sigaddset(&blocked, number);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  if (former->sa_flags & SA_SIGINFO)
    former->sa_sigaction(number, info, machine);
  else
    former->sa_handler(number);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Not ours: to the one that had the signal before, and where that raises it again, as faulthandler
 * does, to the one before it. */
static void pass_on(int number, siginfo_t *info, void *machine) {
  const struct chain *chain = atomic_load_explicit(&present, memory_order_acquire);
  const unsigned outer = depth;
  unsigned at = outer;
  if (info->si_code > 0) {
    repeats = stubborn == info->si_addr ? repeats + 1 : 0;
    stubborn = info->si_addr;
    at = repeats / PATIENCE;
  }
  if (at >= chain->count || chain->former[at].sa_handler == SIG_DFL) {
    end_by_default(number, info);
    return;
  }
  if (chain->former[at].sa_handler == SIG_IGN) {
    if (info->si_code > 0) end_by_default(number, info); /* as the kernel would */
    return;
  }
  depth = at + 1;
  call_former(&chain->former[at], number, info, machine);
  depth = outer;
}

static void on_sigbus(int number, siginfo_t *info, void *machine) {
  struct armed *mine = armed;
  if (mine != NULL) {
    if (info->si_code > 0 && mine->guard->owns(mine->guard->owner, info->si_addr)) {
      mine->address = info->si_addr;
      armed = NULL;
      siglongjmp(mine->out, 1);
    }
    /* Another handler came first and raised the signal again: the fault itself repeats. */
    if (info->si_code == SI_TKILL && info->si_pid == getpid()) return;
  }
  pass_on(number, info, machine);
}

static bool is_ours(const struct sigaction *action) {
  return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_sigbus;
}

static bool is_same(const struct sigaction *one, const struct sigaction *other) {
  return one->sa_handler == other->sa_handler && one->sa_flags == other->sa_flags;
}

/* Put our handler in front of `former`; by one thread at a time. */
static void set_handler(const struct sigaction *former) {
  const struct chain *old = atomic_load_explicit(&present, memory_order_relaxed);
  struct chain *chain = &chains[next_chain++ % CHAINS];
  chain->former[0] = *former;
  chain->count = 1;
  for (unsigned i = 0; old != NULL && i < old->count && chain->count < MAX_FORMER; i++)
    if (!is_same(&old->former[i], former)) chain->former[chain->count++] = old->former[i];
  atomic_store_explicit(&present, chain, memory_order_release);
  struct sigaction ours;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_sigbus;
  /* No signal is blocked, so that a jump out of the handler leaves the mask as it was. */
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  sigaction(SIGBUS, &ours, NULL);
}

/* The look costs one system call a guard: faulthandler may have been switched on meanwhile, and
 * would tell of a fatal error that is none. */
static void stay_in_front(void) {
  struct sigaction found;
  if (sigaction(SIGBUS, NULL, &found) != 0 || is_ours(&found)) return;
  int nobody = 0;
  const int me = (int)getpid();
  if (!atomic_compare_exchange_strong(&changing, &nobody, me)) {
    /* Left over from the process that forked this one, or another thread is at it. */
    if (nobody == me || !atomic_compare_exchange_strong(&changing, &nobody, me)) return;
  }
  if (sigaction(SIGBUS, NULL, &found) == 0 && !is_ours(&found)) set_handler(&found);
  atomic_store(&changing, 0);
}

bool pe_guard_run(const struct pe_guard *guard, const uint8_t **address) {
  struct armed here;
  here.guard = guard;
  stay_in_front();
  if (sigsetjmp(here.out, 0) != 0) {
    *address = here.address;
    return false;
  }
  armed = &here;
  atomic_signal_fence(memory_order_seq_cst);
  guard->body(guard->context);
  atomic_signal_fence(memory_order_seq_cst);
  armed = NULL;
  return true;
}
