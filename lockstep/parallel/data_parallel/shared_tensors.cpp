#include "lockstep/parallel/data_parallel/shared_tensors.h"

#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::data_parallel {

std::vector<Shared> match(const NamedDict& own, const std::vector<NamedDict>& copies,
                          const char* kind) {
  std::vector<Shared> result;
  for (size_t i = 0; i < own.size(); ++i) {
    Shared shared{.name = own[i].key(), .own = own[i].value(), .copies = {}};
    for (const NamedDict& copy : copies) {
      const bool same =
          copy.size() == own.size() && copy[i].key() == own[i].key() &&
          copy[i].value().defined() == own[i].value().defined() &&
          (!own[i].value().defined() || copy[i].value().sizes() == own[i].value().sizes());
      if (!same) {
        throw InvalidArgument(std::string("DataParallel: the replicas differ from the model at ") +
                              kind + " '" + own[i].key() +
                              "'; is the function that makes them given the model's options?");
      }
      shared.copies.push_back(copy[i].value());
    }
    if (shared.own.defined()) result.push_back(std::move(shared));
  }
  return result;
}

void share_memory(at::Tensor& copy, const at::Tensor& source) {
  if (copy.is_alias_of(source) && copy.scalar_type() == source.scalar_type() &&
      copy.sizes() == source.sizes() && copy.strides() == source.strides() &&
      copy.storage_offset() == source.storage_offset()) {
    return;
  }
  copy.mutable_grad().reset();  // it may have another dtype or device
  copy.set_data(source.detach());
  copy.unsafeGetTensorImpl()->set_version_counter(source.unsafeGetTensorImpl()->version_counter());
}

void copy_values(at::Tensor& copy, const at::Tensor& source, const at::Device& device) {
  const bool fits = copy.device() == device && copy.scalar_type() == source.scalar_type() &&
                    copy.sizes() == source.sizes() && !copy.is_alias_of(source);
  if (fits) {
    copy.copy_(source, /*non_blocking=*/true);
  } else {
    copy.mutable_grad().reset();
    copy.set_data(source.detach().to(device, /*non_blocking=*/true, /*copy=*/true));
  }
}

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

int64_t bytes_of(const Tensors& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

}  // namespace lockstep::inline v0::data_parallel
