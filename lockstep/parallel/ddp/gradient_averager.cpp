#include "lockstep/parallel/ddp/gradient_averager.h"

#include "lockstep/comm/same_on_all_ranks.h"

namespace lockstep::inline v0 {
namespace {

flat::WrappedParameters checked(const NamedTensors& parameters, ModelKind kind) {
  flat::WrappedParameters result("GradientAverager", parameters, kind);
  result.check_trained();
  return result;
}

// Returns the parameters that the reducer takes.
NamedTensors same_on_all(Communicator& comm, const NamedTensors& parameters) {
  check_same_on_all_ranks(comm, parameters);
  return flat::trained_once(parameters);
}

}  // namespace

GradientAverager::GradientAverager(const NamedTensors& parameters, ModelKind kind,
                                   Communicator comm, ReducerOptions options)
    : wrapped_(checked(parameters, kind)),
      comm_(comm.size() == 1 ? std::move(comm) : comm.duplicate()),
      reducer_(same_on_all(comm_, parameters), comm_, std::move(options)) {}

}  // namespace lockstep::inline v0
