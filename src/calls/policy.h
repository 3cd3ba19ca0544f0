// Rules that differ between the packages abele and poptorch. A package sets the fields; model/ follows them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/type.h"
#include "compile/program_options.h"
#include "options/store.h"

namespace abele::calls {

/// The defaults are Abele's own rules.
struct Policy {
  bool many_programs = true;            // each kind of inputs gets a program; else each order of keys gets one, and
                                        // other inputs are refused (E0704)
  bool many_structures = false;         // inputs of another structure get another program; else they are refused
                                        // (E0704)
  bool torch_updates = true;            // compute updates as torch does, where PopTorch differs
  bool shares_weights = true;           // devices work in the model's own memory unless shareWeights is off, and each
                                        // training uses the newest weights of the others; else weights are copied
  bool short_pipelines = true;          // pipelines may have fewer micro-batches than stages
  bool wide_numbers = true;             // else int64 and float64 arguments and results are narrowed to 32 bits
  bool repeats_constants = true;        // a result that does not depend on inputs has the rows of all micro-batches;
                                        // else those of one
  bool checks_captures = true;          // forward is captured twice, and both captures must give the same program
                                        // (E0101)
  std::vector<DType> input_types = {};  // types of inputs that devices accept; empty: all
  int64_t most_devices = 0;             // devices are reserved in powers of two up to this number; 0: a program gets
                                        // exactly as many as it uses
};

/// The options of a program of this policy. Throws the errors of programOptions() in compile/from_options.h.
compile::ProgramOptions programOptions(Options::Values values, bool training, const Policy& policy);

}  // namespace abele::calls
