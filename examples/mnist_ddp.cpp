#include <lockstep/lockstep.h>
#include <torch/torch.h>

int main() {
  auto comm = lockstep::init();  // lockstep run, torchrun, mpirun or srun; alone otherwise
  auto mnist = lockstep::data::mnist("data/mnist");
  lockstep::data::DistributedSampler sampler(mnist.train.size(), comm,
                                             {.shuffle = true, .seed = 1234});
  lockstep::data::Loader loader(mnist.train, sampler, {.batch_size = 64, .device = comm.device()});

  lockstep::SimpleCnn net;
  net->to(comm.device());  // LOCKSTEP_DEVICE=cuda: a GPU for each rank
  lockstep::DistributedDataParallel model(net, comm);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  for (int epoch = 0; epoch < 10; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& [image, label] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(image), label);
      loss.backward();  // gradients are averaged across ranks while backward runs
      optimizer.step();
    }
  }
  if (comm.rank() == 0) lockstep::save(model.module(), "mnist.safetensors");
}
