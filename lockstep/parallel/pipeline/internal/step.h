// One step of a stage: its actions, in order.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/parallel/pipeline/pipeline.h"

namespace lockstep::inline v0::internal {

class PipelineStep {
 public:
  // The arguments must outlive it.
  PipelineStep(Communicator& comm, const PipelineSchedule& schedule,
               const std::map<int, PipelineChunk>& chunks, const PipelineDiscipline& discipline,
               const PipelineBatch& batch, bool backward, bool counts_bytes = false);

  // The stage's part of the loss, float64 [1] on the communicator's device: all of it on the last
  // chunk's stage, 0 elsewhere. The host does not wait for it.
  at::Tensor run();

  // The actions in the order in which they ran, in seconds since run() began. An action begins when
  // the rows that it waits for have arrived.
  const std::vector<TimedAction>& executed() const { return executed_; }
  int most_held() const { return most_held_; }
  int64_t most_bytes() const {
    return most_bytes_;
  }  // Bytes held at once; 0 where they are not counted.
  // The current action, for messages: "stage 2, F3".
  std::string place() const;

 private:
  using Place = std::pair<int, int>;  // chunk, micro-batch
  struct Kept {
    at::Tensor input, output;  // of a forward, with its graph
  };
  struct Receive {
    size_t action = 0;
    PipelineMessage message;
    at::Tensor rows;
    Work work;
  };
  struct Sent {
    PipelineMessage message;
    Work work;
  };

  bool crosses(const PipelineMessage& message) const;
  int tag_of(const PipelineMessage& message) const;
  const PipelineRows& rows_between(const PipelineMessage& message) const;
  // Posts the receives of action `at`, and those that may be ahead of it.
  void post(size_t at);
  at::Tensor received(const PipelineMessage& message);
  void send(const PipelineMessage& message, const at::Tensor& rows);
  void settle_sends(size_t most);
  double now() const;

  void run(const PipelineAction& action);
  void forward(const PipelineAction& action);
  void backward(const PipelineAction& action);
  void hold(const PipelineAction& action, int64_t bytes);
  void let_go(const PipelineAction& action);
  void check_rows(const PipelineAction& action, const at::Tensor& rows) const;

  Communicator& comm_;
  const PipelineSchedule& schedule_;
  const std::map<int, PipelineChunk>& chunks_;
  PipelineDiscipline discipline_;
  const PipelineBatch& batch_;
  bool backward_;
  std::vector<PipelineAction> actions_;    // of this stage and batch
  std::vector<MicroBatch> micro_batches_;  // of the batch
  std::vector<bool> defers_;               // by chunk of the model: whether W is separate

  std::vector<std::pair<size_t, PipelineMessage>> awaited_;  // action and message, in order
  size_t next_awaited_ = 0;                                  // the first that is not posted
  std::deque<Receive> posted_;
  std::map<std::pair<int, Place>, at::Tensor> handed_;  // passed between chunks of this stage
  std::deque<Sent> sends_;
  std::map<Place, Kept> kept_;
  std::vector<at::Tensor> losses_;
  std::vector<TimedAction> executed_;
  std::chrono::steady_clock::time_point origin_;
  double begun_ = 0, ended_ = 0;  // of the current action
  int held_ = 0, most_held_ = 0;
  bool counts_bytes_;
  std::map<Place, int64_t> bytes_;  // of held activations
  int64_t held_bytes_ = 0, most_bytes_ = 0;
};

}  // namespace lockstep::inline v0::internal
