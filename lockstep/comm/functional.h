// Collectives that autograd differentiates. All return new tensors and leave their arguments alone.
//
// Gradients are those of the SUM of all ranks' losses, each rank calling backward() on its own.
// That is the one choice under which a collective's backward is the adjoint of the collective
// itself (all_reduce's is all_reduce, all_gather's is reduce_scatter, and so on), whatever comes
// before and after it; so graphs compose, may be differentiated twice, and agree with one process
// that computes every rank's part and adds the losses up. It is what
// torch.distributed.nn.functional does. If instead all ranks compute the same loss from the result,
// their sum is size() times that loss: divide it by size(), or average gradients.
//
//   operation               backward, on the gradient of the result
//   all_reduce(sum, avg)    all_reduce(sum, avg)
//   all_reduce(max, min)    the sum of all ranks' gradients, to the ranks that have the extremum;
//                           divided evenly among equal ones, as torch.amax does
//   all_gather(v)           reduce_scatter(v)(sum)
//   reduce_scatter(v)       all_gather(v); divided by size() for avg
//   broadcast               reduce(sum) to the root; zero elsewhere
//   reduce(sum, avg)        broadcast from the root; divided by size() for avg
//   gather                  scatter from the root
//   scatter                 gather to the root
//   all_to_all(v)           all_to_all(v), back
//   send, recv              recv from there, send back, of the same tag
//
// Backward is a collective as well: every rank must run it, through the same operations in the same
// order. Two things see to that. In grad mode a floating-point result requires grad on every rank,
// whether this rank's input does or not, so that all or none of the ranks communicate in backward.
// And autograd runs what was done last first. What remains with the caller: the result must reach
// the loss on every rank (also where it is only zeros: see reduce, gather and send), and
// torch::autograd::grad(outputs, inputs) only runs what leads to those inputs. A rank that falls
// out of step gets Mismatch or Timeout out of backward(), with the line of the forward call.
//
// The graph holds the communicator, so its group lives as long as the graph. Backward uses it on
// the thread that runs backward, which for CPU tensors is the caller's. Integer tensors are carried
// without gradients. Errors and sites are as in communicator.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0::functional {

// The caller's line, as in Communicator.
using Site = Communicator::Site;

// For sum, avg, max and min; other reductions throw InvalidArgument where a gradient could be asked
// for.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor all_reduce(const Communicator& comm, const at::Tensor& input,
                                   ReduceOp op = ReduceOp::kSum, Site site = Site::current());

// [k, ...] gives [size * k, ...]; all_gatherv takes parts of different lengths, whose lengths it
// exchanges first.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor all_gather(const Communicator& comm, const at::Tensor& input,
                                   Site site = Site::current());
LOCKSTEP_API at::Tensor all_gatherv(const Communicator& comm, const at::Tensor& input,
                                    Site site = Site::current());

// For sum and avg. [size * k, ...] gives [k, ...]; reduce_scatterv takes parts of counts[r] rows,
// the same vector on all ranks.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor reduce_scatter(const Communicator& comm, const at::Tensor& input,
                                       ReduceOp op = ReduceOp::kSum, Site site = Site::current());
LOCKSTEP_API at::Tensor reduce_scatterv(const Communicator& comm, const at::Tensor& input,
                                        std::span<const int64_t> counts,
                                        ReduceOp op = ReduceOp::kSum, Site site = Site::current());

// The root's values on every rank; elsewhere `input` gives shape and dtype.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor broadcast(const Communicator& comm, const at::Tensor& input, int root,
                                  Site site = Site::current());

// For sum and avg: the result on the root, and zeros of that shape elsewhere, which must still
// reach the loss.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor reduce(const Communicator& comm, const at::Tensor& input, int root,
                               ReduceOp op = ReduceOp::kSum, Site site = Site::current());

// All parts on the root, [size * k, ...]; zeros of that shape elsewhere, which must still reach the
// loss.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor gather(const Communicator& comm, const at::Tensor& input, int root,
                               Site site = Site::current());

// Part r, shaped and typed as `like`, of the root's `input` [size * k, ...]; `input` is ignored
// elsewhere (pass {}).
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor scatter(const Communicator& comm, const at::Tensor& like,
                                const at::Tensor& input, int root, Site site = Site::current());

// Sends part r of `input` to rank r. all_to_allv sends send_counts[r] rows; it exchanges the counts
// first.
// Collective: all ranks call it.
LOCKSTEP_API at::Tensor all_to_all(const Communicator& comm, const at::Tensor& input,
                                   Site site = Site::current());
LOCKSTEP_API at::Tensor all_to_allv(const Communicator& comm, const at::Tensor& input,
                                    std::span<const int64_t> send_counts,
                                    Site site = Site::current());

// Point to point. send returns an empty tensor that stands for the message in this rank's graph:
// add its sum(), which is 0, to the loss; otherwise no rank receives the gradient that the
// receiver's backward sends. recv returns the received values, shaped and typed as `like`.
LOCKSTEP_API at::Tensor send(const Communicator& comm, const at::Tensor& input, int dst,
                             int tag = 0, Site site = Site::current());
LOCKSTEP_API at::Tensor recv(const Communicator& comm, const at::Tensor& like, int src, int tag = 0,
                             Site site = Site::current());

}  // namespace lockstep::inline v0::functional
