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
// result of `generator`, which is called by each of them and outlives this. Operations on other
// devices draw from those devices' own. Of several on one thread the innermost counts; they end in
// the reverse order.
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
  const std::function<const at::Generator&()>* outer_;  // of this thread
  std::unique_ptr<internal::KeyOnThread> key_;
};

}  // namespace lockstep::inline v0::hooks
