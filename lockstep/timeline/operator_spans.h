// OperatorSpans: libtorch's operators as spans of a log.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/timeline/span_log.h"

namespace lockstep::inline v0::timeline {

// While it lives, the operators and the backward functions that this thread runs, and that autograd
// runs for it on other threads, are spans of the log. It keeps something in libtorch's information of
// the thread: what others put there meanwhile, such as a profiler, ends before it.
// Requires: made and destroyed on one thread.
class OperatorSpans {
 public:
  explicit OperatorSpans(std::shared_ptr<SpanLog> log);
  ~OperatorSpans();
  OperatorSpans(const OperatorSpans&) = delete;
  OperatorSpans& operator=(const OperatorSpans&) = delete;

 private:
  struct Registration;
  std::unique_ptr<Registration> registration_;
};

}  // namespace lockstep::inline v0::timeline
