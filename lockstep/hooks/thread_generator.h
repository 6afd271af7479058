// ThreadGenerator: random operations of one thread use a generator of its own, though they are not
// passed one. Dropout's module, for example, takes none.
#pragma once

#include <ATen/core/Generator.h>

#include <functional>
#include <memory>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::hooks {

namespace internal {
class KeyOnThread;
}

// While it lives, operations of this thread that take a generator and are passed none use the
// result of `generator`, which is called by the first of them and outlives this. It works for CPU
// tensors only: do not make it where a thread works on another device. A thread may have one at a
// time.
class LOCKSTEP_API ThreadGenerator {
 public:
  explicit ThreadGenerator(std::function<const at::Generator&()> generator);
  ~ThreadGenerator();
  ThreadGenerator(const ThreadGenerator&) = delete;
  ThreadGenerator& operator=(const ThreadGenerator&) = delete;

  // The generator of this thread's operations; undefined where no ThreadGenerator lives here.
  static at::Generator current();

  // May be called before the first one, on any thread: it takes some milliseconds, once per
  // process, which the threads then need not spend.
  static void prepare();

 private:
  std::function<const at::Generator&()> generator_;
  std::unique_ptr<internal::KeyOnThread> key_;
};

}  // namespace lockstep::inline v0::hooks
