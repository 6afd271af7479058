// The samples of a ring as tensors, for programs that have libtorch.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/export.h"
#include "lockstep/insitu/ring.h"

namespace lockstep::inline v0::insitu {

// Throw InvalidArgument for a type that the other side lacks.
LOCKSTEP_API c10::ScalarType scalar_type(DType dtype);
LOCKSTEP_API DType dtype_of(c10::ScalarType type);

// The fields of these tensors, one for each name. Throws: InvalidArgument unless there are as many.
LOCKSTEP_API Schema schema_of(const std::vector<std::string>& names,
                              const std::vector<at::Tensor>& tensors);

// The fields of one sample without a copy: CPU tensors, whose memory is the ring's. The sample is
// moved out of the batch, and its slot is released when the last tensor on it is freed; until then
// it is missing in the ring. Write nothing into them.
// Throws: InvalidArgument for a sample that is not there.
LOCKSTEP_API std::vector<at::Tensor> view_sample(Batch& batch, size_t sample);

// All samples of a batch as one tensor a field, [samples, shape...], on the CPU: a copy. The batch
// keeps its slots. A batch of no samples gives tensors of none.
LOCKSTEP_API std::vector<at::Tensor> stack(const Batch& batch);

// Consumer::take() and stack() in one: each sample is copied when it comes and released at once, so
// `count` may be above the ring's slots, and the simulation gets its slots back early.
// Throws: InvalidArgument for a count of 0.
LOCKSTEP_API std::vector<at::Tensor> take_tensors(Consumer& ring, size_t count, Deadline deadline);

// Producer::push() of one tensor a field: of the schema's dtypes and shapes, on any device, of any
// strides. Returns false if the sample is dropped.
// Throws: InvalidArgument that names the field and both forms, before anything is claimed.
LOCKSTEP_API bool push_tensors(Producer& ring, const std::vector<at::Tensor>& tensors,
                               Deadline deadline);

}  // namespace lockstep::inline v0::insitu
