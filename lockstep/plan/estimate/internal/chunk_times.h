// The times of each chunk of a pipeline for one micro-batch, computing and sending, in seconds.
#pragma once

#include <vector>

#include "lockstep/plan/layout/layout.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/machine/stack.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan::internal {

// One pass of some layers over one micro-batch. Communication is what is not hidden.
struct Pass {
  double matrices = 0, attention = 0, elementwise = 0, head = 0;
  double tensor = 0, context = 0, expert = 0, parameters = 0;
  double late = 0;  // waiting for the slowest rank
  double host = 0;  // the stack's own
  // The time that this rank works by itself, without communication and waiting.
  double work() const { return matrices + attention + elementwise + head + host; }
  double total() const { return work() + tensor + context + expert + parameters + late; }
  Pass& operator+=(const Pass& other);
  // work(), times the factor; communication stays.
  void scale_work(double factor);
  void scale(double factor);  // all of it
};

struct ChunkTimes {
  Pass forward;
  Pass backward;          // of inputs, with what is computed anew for it
  Pass weights;           // of weights
  double recomputed = 0;  // of the backward
  double sent = 0;        // a message to a neighbour, with the wait for a late one
  double all() const { return forward.total() + backward.total() + weights.total(); }
  // The computations of both, one after the other; `sent` stays.
  ChunkTimes& operator+=(const ChunkTimes& other);
};

// The times of each chunk of the model.
std::vector<ChunkTimes> chunk_times(const ModelShape& model, const Layout& layout,
                                    const Machine& machine, const Stack& stack);

// The ranks among which parameters are gathered: those of a host may share one copy (Stack::shares_parameters).
GroupPlace gathered_among(const GroupPlace& place, const Machine& machine, const Stack& stack);

// The time of communication that a computation of `window` seconds beside it does not hide.
double exposed(double communication, double window, double overlap);

}  // namespace lockstep::inline v0::plan::internal
