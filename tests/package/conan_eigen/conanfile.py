"""Stands in for the recipe of Eigen in a remote: the headers of MHLA_TEST_EIGEN, by its names."""

import os

from conan import ConanFile
from conan.tools.files import copy


class Eigen(ConanFile):
    name = "eigen"
    package_type = "header-library"

    def package(self):
        for pattern in ("Eigen/*", "signature_of_eigen3_matrix_library"):
            copy(self, pattern, os.environ["MHLA_TEST_EIGEN"],
                 os.path.join(self.package_folder, "include"))

    def package_info(self):
        self.cpp_info.set_property("cmake_file_name", "Eigen3")
        self.cpp_info.set_property("cmake_target_name", "Eigen3::Eigen")
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
