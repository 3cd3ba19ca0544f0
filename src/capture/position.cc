#include "capture/position.h"

#include "base/cat.h"
#include "base/error.h"

namespace abele::capture {

std::string Position::str() const { return where.source.empty() ? op_name : cat(op_name, ", ", where.source); }

void Position::refuseRead() const {
  throwUser(ErrorCode::E0101,
            {.what = "forward reads a tensor's value while it is being captured",
             .at = str(),
             .found = "a value that depends on the inputs, the weights or random numbers",
             .expected = "control flow that is the same for every input",
             .remedy = cat("keep the value in a tensor (", inLanguage("torch::where"),
                           ", masks, tensor indices), or compute it before the call and pass it as a number; let the "
                           "host compute in every step what needs the value (",
                           inLanguage("abele::ops::HostCall"), "); where forward only checks its inputs, ",
                           inLanguage("abele::Options::trustReads(true)"), " checks them in every step")});
}

}  // namespace abele::capture
