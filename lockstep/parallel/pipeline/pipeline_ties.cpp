#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/parallel/pipeline/internal/place.h"
#include "lockstep/parallel/pipeline/internal/ties.h"

namespace lockstep::inline v0::internal {
namespace {

std::string tied_place(const Communicator& comm, int peer, const char* what) {
  return "pipeline stage " + std::to_string(comm.rank()) + " meets stage " + std::to_string(peer) +
         " for a tied parameter's " + what;
}

}  // namespace

Ties::Ties(const PipelineSchedule& schedule, int stage, std::vector<PipelineTie> ties)
    : ties_(std::move(ties)) {
  // After the tags of messages between chunks, two per chunk.
  int tag = 2 * schedule.all_chunks();
  for (const PipelineTie& tie : ties_) {
    const std::string what = "pipeline: the tie of chunks " + std::to_string(tie.first) + " and " +
                             std::to_string(tie.last);
    if (tie.first < 0 || tie.first >= tie.last || tie.last >= schedule.all_chunks())
      throw InvalidArgument(what + ": give two of " + std::to_string(schedule.all_chunks()) +
                            " chunks, the first one first");
    const int first = schedule.stage_of[static_cast<size_t>(tie.first)];
    const int last = schedule.stage_of[static_cast<size_t>(tie.last)];
    const bool own = stage == first || stage == last;
    if (own != tie.parameter.defined())
      throw InvalidArgument(what + (own ? " needs this stage's parameter"
                                        : " is of other stages; give no parameter"));
    for (const PipelineTie& other : ties_) {
      if (&other != &tie && own && other.parameter.defined() &&
          other.parameter.is_same(tie.parameter))
        throw InvalidArgument(what + ": its parameter is in another tie, too; tie two chunks only");
    }
    if (own && first != last)
      own_.push_back({tie.parameter, stage == first, stage == first ? last : first, tag, {}});
    ++tag;
  }
}

void Ties::spread(Communicator& comm) {
  const at::NoGradGuard no_grad;
  for (const Own& own : own_) {
    const auto place = [&] { return tied_place(comm, own.peer, "values"); };
    if (own.first) {
      at_place(place, [&] { comm.send(own.parameter.detach(), own.peer, own.tag); });
    } else {
      const at::Tensor values = at::empty_like(own.parameter, at::MemoryFormat::Contiguous);
      at_place(place, [&] { comm.recv(values, own.peer, own.tag); });
      own.parameter.detach().copy_(values);
    }
  }
}

void Ties::begin() {
  const at::NoGradGuard no_grad;
  for (Own& own : own_) {
    own.before.reset();
    if (!own.parameter.grad().defined()) continue;
    own.before = own.parameter.grad().clone();
    own.parameter.mutable_grad().zero_();
  }
}

void Ties::end(Communicator& comm) {
  const at::NoGradGuard no_grad;
  for (Own& own : own_) {
    if (!own.parameter.requires_grad()) continue;
    at::Tensor& grad = own.parameter.mutable_grad();
    if (!grad.defined()) grad = at::zeros_like(own.parameter);
    const at::Tensor mine = grad.clone(at::MemoryFormat::Contiguous);
    const at::Tensor theirs = at::empty_like(mine);
    at_place([&] { return tied_place(comm, own.peer, "gradient"); },
             [&] {
               Work received = comm.irecv(theirs, own.peer, own.tag);
               Work sent = comm.isend(mine, own.peer, own.tag);
               received.wait();
               sent.wait();
             });
    // Added in the same order on both stages, so that both have the same bits.
    grad.copy_(own.first ? mine + theirs : theirs + mine);
    if (own.before.defined()) grad.add_(own.before);
    own.before.reset();
  }
}

}  // namespace lockstep::inline v0::internal
