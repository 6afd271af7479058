#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/live_bytes.h"
#include "lockstep/parallel/pipeline/internal/place.h"
#include "lockstep/parallel/pipeline/internal/step.h"

namespace lockstep::inline v0::internal {

PipelineStep::PipelineStep(Communicator& comm, const PipelineSchedule& schedule,
                           const std::map<int, PipelineChunk>& chunks,
                           const PipelineDiscipline& discipline, const PipelineBatch& batch,
                           bool backward, bool counts_bytes)
    : comm_(comm),
      schedule_(schedule),
      chunks_(chunks),
      discipline_(discipline),
      batch_(batch),
      backward_(backward),
      counts_bytes_(counts_bytes) {
  const auto count = static_cast<int>(batch.rows.size());
  int64_t row = 0;
  for (int i = 0; i < count; ++i) {
    const int64_t rows = batch.rows[static_cast<size_t>(i)];
    micro_batches_.push_back({i, rows, row, false});
    row += rows;
  }
  defers_.resize(schedule.stage_of.size());
  for (const PipelineAction& action : schedule.actions[static_cast<size_t>(comm.rank())]) {
    if (action.micro_batch >= count) continue;
    if (!backward && action.work != PipelineWork::kForward) continue;
    if (action.work == PipelineWork::kBackwardWeight)
      defers_[static_cast<size_t>(action.chunk)] =
          chunks_.at(action.chunk).backward_weight != nullptr;
    if (const auto message = received_by(schedule, action); message && crosses(*message))
      awaited_.emplace_back(actions_.size(), *message);
    actions_.push_back(action);
  }
}

std::string PipelineStep::place() const {
  std::string text = "stage " + std::to_string(comm_.rank());
  if (executed_.size() < actions_.size())
    text += ", " + to_string(actions_[executed_.size()], schedule_.chunks);
  return text;
}

bool PipelineStep::crosses(const PipelineMessage& message) const {
  return schedule_.stage_of[static_cast<size_t>(message.from)] !=
         schedule_.stage_of[static_cast<size_t>(message.to)];
}

// One tag per boundary and direction: within it messages arrive in the order in which they are
// awaited (check_schedule).
int PipelineStep::tag_of(const PipelineMessage& message) const {
  return 2 * std::min(message.from, message.to) + (message.forward() ? 0 : 1);
}

const PipelineRows& PipelineStep::rows_between(const PipelineMessage& message) const {
  return message.forward() ? chunks_.at(message.to).takes : chunks_.at(message.to).gives;
}

void PipelineStep::post(size_t at) {
  size_t ahead = 0;
  for (const Receive& receive : posted_) ahead += receive.action > at ? 1 : 0;
  for (; next_awaited_ < awaited_.size(); ++next_awaited_) {
    const auto& [action, message] = awaited_[next_awaited_];
    if (action > at && ++ahead > static_cast<size_t>(discipline_.receives_ahead)) return;
    const PipelineRows& rows = rows_between(message);
    const std::vector<int64_t> shape =
        sizes_of(rows, micro_batches_[static_cast<size_t>(message.micro_batch)].rows);
    const at::Tensor memory =
        at::empty(shape, at::TensorOptions().dtype(rows.dtype).device(comm_.device()));
    const int from = schedule_.stage_of[static_cast<size_t>(message.from)];
    Work work;
    at_place([&] { return "pipeline " + place(); },
             [&] { work = comm_.irecv(memory, from, tag_of(message)); });
    posted_.push_back({action, message, memory, std::move(work)});
  }
}

at::Tensor PipelineStep::received(const PipelineMessage& message) {
  if (!crosses(message)) {
    const auto found = handed_.find({message.from, {message.to, message.micro_batch}});
    LOCKSTEP_CHECK(found != handed_.end(), "a chunk of this stage has run before its neighbour");
    at::Tensor rows = std::move(found->second);
    handed_.erase(found);
    return rows;
  }
  LOCKSTEP_CHECK(!posted_.empty() && posted_.front().message == message,
                 "receives are posted in the order of the actions");
  Receive receive = std::move(posted_.front());
  posted_.pop_front();
  at_place(
      [&] {
        const int from = schedule_.stage_of[static_cast<size_t>(message.from)];
        return "pipeline " + place() + " awaits " + name_of(message) + " from stage " +
               std::to_string(from);
      },
      [&] { receive.work.wait(); });
  return receive.rows;
}

void PipelineStep::send(const PipelineMessage& message, const at::Tensor& rows) {
  if (!crosses(message)) {
    handed_[{message.from, {message.to, message.micro_batch}}] = rows;
    return;
  }
  const int to = schedule_.stage_of[static_cast<size_t>(message.to)];
  Work work;
  at_place([&] { return "pipeline " + place(); },
           [&] { work = comm_.isend(rows.contiguous(), to, tag_of(message)); });
  sends_.push_back({message, std::move(work)});
}

void PipelineStep::settle_sends(size_t most) {
  const auto waits = [&] {
    const PipelineMessage& message = sends_.front().message;
    return "pipeline stage " + std::to_string(comm_.rank()) + " waits until stage " +
           std::to_string(schedule_.stage_of[static_cast<size_t>(message.to)]) + " takes " +
           name_of(message);
  };
  bool over = true;
  while (!sends_.empty() && over) {
    at_place(waits, [&] {
      if (sends_.size() > most)
        sends_.front().work.wait();
      else
        over = sends_.front().work.test();
    });
    if (over) sends_.pop_front();
  }
}

double PipelineStep::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - origin_).count();
}

at::Tensor PipelineStep::run() {
  origin_ = std::chrono::steady_clock::now();
  const size_t most =
      discipline_.most_sends == 0 ? actions_.size() : static_cast<size_t>(discipline_.most_sends);
  for (size_t i = 0; i < actions_.size(); ++i) {
    post(i);
    begun_ = now();
    ended_ = -1;
    run(actions_[i]);
    executed_.push_back({actions_[i], begun_, ended_ < 0 ? now() : ended_});
    settle_sends(most);
  }
  settle_sends(0);
  at::Tensor loss = at::zeros({1}, at::TensorOptions(at::kDouble).device(comm_.device()));
  for (const at::Tensor& part : losses_) loss.add_(part.reshape({1}).to(loss.options()));
  return loss;
}

void PipelineStep::run(const PipelineAction& action) {
  switch (action.work) {
    case PipelineWork::kForward:
      forward(action);
      return;
    case PipelineWork::kBackward:
    case PipelineWork::kBackwardInput:
      backward(action);
      if (action.work == PipelineWork::kBackward) let_go(action);
      return;
    case PipelineWork::kBackwardWeight:
      if (defers_[static_cast<size_t>(action.chunk)]) {
        MicroBatch micro_batch = micro_batches_[static_cast<size_t>(action.micro_batch)];
        micro_batch.defer_weights = true;
        chunks_.at(action.chunk).backward_weight(micro_batch);
      }
      let_go(action);
  }
}

void PipelineStep::hold(const PipelineAction& action, int64_t bytes) {
  most_held_ = std::max(most_held_, ++held_);
  bytes_[{action.chunk, action.micro_batch}] = bytes;
  held_bytes_ += bytes;
  most_bytes_ = std::max(most_bytes_, held_bytes_);
}

void PipelineStep::let_go(const PipelineAction& action) {
  --held_;
  const auto found = bytes_.find({action.chunk, action.micro_batch});
  LOCKSTEP_CHECK(found != bytes_.end(), "what is let go was held");
  held_bytes_ -= found->second;
  bytes_.erase(found);
}

void PipelineStep::check_rows(const PipelineAction& action, const at::Tensor& rows) const {
  const PipelineRows& declared = chunks_.at(action.chunk).gives;
  const int64_t expected = micro_batches_[static_cast<size_t>(action.micro_batch)].rows;
  const std::vector<int64_t> shape = sizes_of(declared, expected);
  if (rows.defined() && rows.sizes() == at::IntArrayRef(shape) &&
      rows.scalar_type() == declared.dtype) {
    // On another device they would never meet their receive, and both stages would wait until the
    // timeout.
    if (rows.device() == comm_.device()) return;
    throw InvalidArgument("pipeline: chunk " + std::to_string(action.chunk) + " gives rows on " +
                          rows.device().str() + ", and the ranks' device is " +
                          comm_.device().str() +
                          "; move the stage's model and its input there, or ask init() for the "
                          "device that they are on");
  }
  std::string given = "nothing";
  if (rows.defined()) {
    given = dtype_name(rows.scalar_type());
    for (const int64_t size : rows.sizes())
      given += (given.find('[') == std::string::npos ? " [" : ", ") + std::to_string(size);
    given += rows.dim() == 0 ? " of no dims" : "]";
  }
  throw InvalidArgument("pipeline: chunk " + std::to_string(action.chunk) + " gives " + given +
                        " for micro-batch " + std::to_string(action.micro_batch) + " of " +
                        std::to_string(expected) + " rows, but declares " + to_string(declared));
}

void PipelineStep::forward(const PipelineAction& action) {
  const PipelineChunk& chunk = chunks_.at(action.chunk);
  MicroBatch micro_batch = micro_batches_[static_cast<size_t>(action.micro_batch)];
  micro_batch.defer_weights = backward_ && defers_[static_cast<size_t>(action.chunk)];
  const at::AutoGradMode gradients(backward_);
  Kept kept;
  const auto message = received_by(schedule_, action);
  if (message) kept.input = received(*message);
  begun_ = now();
  if (!message) kept.input = batch_.input(micro_batch);
  if (!message && kept.input.defined() &&
      (kept.input.dim() == 0 || kept.input.size(0) != micro_batch.rows))
    throw InvalidArgument("pipeline: the input of micro-batch " +
                          std::to_string(micro_batch.index) + " has not the " +
                          std::to_string(micro_batch.rows) + " rows that the batch says");
  if (message && backward_) kept.input.requires_grad_(true);
  std::optional<LiveBytes> live;
  if (counts_bytes_) live.emplace();
  // A message from another stage has had its memory since its receive was posted.
  const auto came = message ? static_cast<int64_t>(kept.input.nbytes()) : 0;
  kept.output = chunk.forward(kept.input, micro_batch);
  int64_t bytes = live ? came + live->now() : 0;
  if (const auto next = sent_by(schedule_, action)) {
    check_rows(action, kept.output);
    ended_ = now();  // the other stages' use of it follows
    send(*next, kept.output.detach());
  } else {
    kept.output = batch_.loss(kept.output, micro_batch);
    if (!kept.output.defined() || kept.output.numel() != 1)
      throw InvalidArgument("pipeline: the loss of micro-batch " +
                            std::to_string(micro_batch.index) + " is no scalar");
    losses_.push_back(kept.output.detach());
    if (live) bytes = came + live->now();
  }
  if (!backward_) return;
  hold(action, bytes);
  kept_[{action.chunk, action.micro_batch}] = std::move(kept);
}

void PipelineStep::backward(const PipelineAction& action) {
  const auto found = kept_.find({action.chunk, action.micro_batch});
  LOCKSTEP_CHECK(found != kept_.end(), "a backward follows its forward");
  Kept kept = std::move(found->second);
  kept_.erase(found);
  at::Tensor gradient;
  if (const auto message = received_by(schedule_, action)) gradient = received(*message);
  begun_ = now();
  // Where everything up to here is frozen, there is nothing to compute. Autocast is for forwards:
  // around step() it applies to these alone.
  if (kept.output.requires_grad()) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    kept.output.backward(gradient);
  }
  kept.output.reset();
  if (const auto next = sent_by(schedule_, action)) {
    const at::Tensor& given = kept.input.grad();
    ended_ = now();
    send(*next, given.defined() ? given : at::zeros_like(kept.input).detach());
  }
}

}  // namespace lockstep::inline v0::internal
