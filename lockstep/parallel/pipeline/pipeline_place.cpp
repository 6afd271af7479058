#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/errors.h"
#include "lockstep/parallel/pipeline/internal/place.h"

namespace lockstep::inline v0::internal {

std::string name_of(const PipelineMessage& message) {
  return (message.forward() ? "the rows of micro-batch " : "the gradient of micro-batch ") +
         std::to_string(message.micro_batch);
}

void at_place(const std::function<std::string()>& place, const std::function<void()>& call) {
  const auto said = [&](const std::exception& error) { return place() + ": " + error.what(); };
  try {
    call();
  } catch (const LateRank& error) {
    throw LateRank(said(error), error.rank());
  } catch (const Timeout& error) {
    throw Timeout(said(error));
  } catch (const PeerLost& error) {
    throw PeerLost(said(error), error.rank());
  } catch (const Mismatch& error) {
    throw Mismatch(said(error));
  }
}

}  // namespace lockstep::inline v0::internal
