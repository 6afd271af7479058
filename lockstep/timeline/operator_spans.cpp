#include "lockstep/timeline/operator_spans.h"

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <utility>

namespace lockstep::inline v0::timeline {
namespace {

// The kinds of information are libtorch's. It reads PROFILER_STATE as a profiler's own class;
// nothing of its own reads or writes this one.
c10::DebugInfoKind log_kind() {
  return c10::DebugInfoKind::PRODUCER_INFO;
}

// How a callback, which is a plain function, finds the log. libtorch hands it on to the threads of
// autograd, which may keep it for longer than the registration.
struct LogInfo final : c10::DebugInfoBase {
  explicit LogInfo(std::shared_ptr<SpanLog> the_log) : log(std::move(the_log)) {}
  std::shared_ptr<SpanLog> log;
};

struct RunningOperator final : at::ObserverContext {
  RunningOperator(std::shared_ptr<SpanLog> the_log, uint64_t now)
      : log(std::move(the_log)), begun(now) {}
  std::shared_ptr<SpanLog> log;
  uint64_t begun;
};

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction&) {
  auto* info = dynamic_cast<LogInfo*>(c10::ThreadLocalDebugInfo::get(log_kind()));
  if (info == nullptr || !info->log->on()) return nullptr;
  return std::make_unique<RunningOperator>(info->log, ticks());
}

void end_operator(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* running = static_cast<const RunningOperator*>(context);
  if (running != nullptr)
    running->log->add(function.name(), running->begun, ticks(), -1, SpanKind::kOperator);
}

at::CallbackHandle add_callback() {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_operator, end_operator)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION,
                   at::RecordScope::USER_SCOPE}));
}

}  // namespace

struct OperatorSpans::Registration {
  explicit Registration(std::shared_ptr<SpanLog> log)
      : info(log_kind(), std::make_shared<LogInfo>(std::move(log))), callback(add_callback()) {}
  ~Registration() { at::removeCallback(callback); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  c10::DebugInfoGuard info;
  at::CallbackHandle callback;
};

OperatorSpans::OperatorSpans(std::shared_ptr<SpanLog> log)
    : registration_(std::make_unique<Registration>(std::move(log))) {}
OperatorSpans::~OperatorSpans() = default;

}  // namespace lockstep::inline v0::timeline
