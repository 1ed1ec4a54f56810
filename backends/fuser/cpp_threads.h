// Threads: those of the OpenMP runtime that torch has loaded, so that there is one pool. It is not linked with; its
// functions are handed over when the library is loaded.

static void (*parallel)(void (*)(void*), void*, unsigned, unsigned);
static int (*thread_number)(), (*thread_count)();

extern "C" void use_threads(void* run, void* number, void* count) {
  parallel = (decltype(parallel))run;
  thread_number = (decltype(thread_number))number;
  thread_count = (decltype(thread_count))count;
}

// Calls function(begin, end) for parts of all tasks.
template <class F>
INLINE void in_parallel(int64_t threads, int64_t tasks, F function) {
  if (threads > tasks) threads = tasks;
  if (threads <= 1 || !parallel) return function(0, tasks);
  struct Job {
    const F& function;
    int64_t tasks;
  } job{function, tasks};
  parallel(
      [](void* data) {
        Job& job = *(Job*)data;
        int64_t n = thread_count(), i = thread_number();
        job.function(job.tasks * i / n, job.tasks * (i + 1) / n);
      },
      &job, (unsigned)threads, 0);
}
