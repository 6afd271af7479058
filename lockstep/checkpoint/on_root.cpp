#include "lockstep/checkpoint/on_root.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>
#include <exception>
#include <string>

#include "lockstep/core/errors.h"
#include "lockstep/core/exception_text.h"

namespace lockstep::inline v0 {
namespace {

// The root's failure.
struct RootFailure {
  std::string message;  // "": nothing
  int errnum = 0;       // the errno of a SystemError
};

RootFailure share(Communicator& comm, RootFailure failure, int root, Communicator::Site site) {
  const at::Tensor head = at::zeros({2}, at::kLong);  // size of the message in bytes, errnum
  if (comm.rank() == root) {
    head.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(failure.message.size());
    head.mutable_data_ptr<int64_t>()[1] = failure.errnum;
  }
  comm.broadcast(head, root, site);
  const int64_t length = head.const_data_ptr<int64_t>()[0];
  const auto errnum = static_cast<int>(head.const_data_ptr<int64_t>()[1]);
  if (length == 0) return {};
  const at::Tensor bytes = at::empty({length}, at::kByte);
  if (comm.rank() == root)
    std::memcpy(bytes.mutable_data_ptr(), failure.message.data(), failure.message.size());
  comm.broadcast(bytes, root, site);
  return {.message = {static_cast<const char*>(bytes.const_data_ptr()),
                      static_cast<size_t>(bytes.numel())},
          .errnum = errnum};
}

}  // namespace

void on_root(Communicator& comm, const std::function<void()>& fn, int root,
             Communicator::Site site) {
  std::exception_ptr thrown;
  RootFailure failure;
  if (comm.rank() == root) {
    try {
      fn();
    } catch (const SystemError& error) {
      thrown = std::current_exception();
      failure = {error.what(), error.errnum()};
    } catch (...) {
      thrown = std::current_exception();
      failure.message = exception_text(thrown);
    }
  }
  failure = share(comm, std::move(failure), root, site);
  if (thrown) std::rethrow_exception(thrown);
  if (failure.errnum != 0) throw SystemError(failure.message, failure.errnum);
  if (!failure.message.empty()) throw CheckpointError(failure.message);
}

}  // namespace lockstep::inline v0
