// ThreadGenerator: random operations of one thread draw from a generator of its own, though nobody
// names it to them. Dropout's module, for one, takes none.
#pragma once

#include <ATen/core/Generator.h>

#include <functional>

namespace lockstep::hooks {

// While it lives, operations of this thread that take a generator and are given none get the one
// that `generator` returns, which is called by the first of them and outlives this. Of CPU tensors
// only: do not make it where a thread works on another device. Not two at once on a thread.
class ThreadGenerator {
 public:
  explicit ThreadGenerator(std::function<const at::Generator&()> generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  // The one that this thread's operations get; undefined where none lives here.
  static at::Generator current();

  // Before the first, on any thread: some milliseconds, once a process, of which the threads then
  // need none.
  static void prepare();

 private:
  std::function<const at::Generator&()> generator_;
  bool was_included_;  // the key, by another scope of this thread
};

}  // namespace lockstep::hooks
