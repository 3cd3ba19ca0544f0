// Python module simulated_links: the simulated accelerator's backend of torch.distributed, as a program registers one.
// Requires: simulated.load().
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "simulated_accelerator/links.h"

PYBIND11_MODULE(simulated_links, module) {
  pybind11::module_::import("torch.distributed");
  module.def("make", &simulated::makeLinks);
}
